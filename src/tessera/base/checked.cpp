#include "tessera/base/checked.h"

#include <limits>
#include <string>

#include "tessera/base/check.h"

namespace tessera {

namespace {

[[noreturn]] void fail(std::string_view what, std::initializer_list<int64_t> numbers, const char* sign,
                       const char* bound) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : sign) + std::to_string(number);
  throw UserError(Exit::usage, "", std::string(what) + ": " + text + " is beyond " + bound, "give smaller numbers");
}

}  // namespace

int64_t checked_product(std::initializer_list<int64_t> factors, std::string_view what) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) fail(what, factors, " x ", "2^63");
  return product;
}

int64_t checked_sum(std::initializer_list<int64_t> terms, std::string_view what) {
  int64_t sum = 0;
  for (const int64_t term : terms)
    if (__builtin_add_overflow(sum, term, &sum)) fail(what, terms, " + ", "2^63");
  return sum;
}

int checked_int(int64_t value, std::string_view what) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    fail(what, {value}, "", "2^31");
  return static_cast<int>(value);
}

}  // namespace tessera
