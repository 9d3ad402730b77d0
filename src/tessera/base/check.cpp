#include "tessera/base/check.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace tessera {

namespace {
/// Lists of a recipe, whose items each end in kListSeparator (options.h, which stands above), as people write them: 1,2,3.
std::string lists_shown(std::string_view text) {
  constexpr char kSeparator = '\x1f';
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != kSeparator)
      shown += text[i];
    else if (i + 1 < text.size() && std::string_view("'\";:) ").find(text[i + 1]) == std::string_view::npos)
      shown += ',';
  return shown;
}

std::string compose(std::string_view where, std::string_view what, std::string_view hint) {
  std::string text;
  if (!where.empty()) text.append("[").append(where).append("] ");
  text.append(what);
  if (!hint.empty()) text.append(hint.front() == '\n' ? "" : "; ").append(hint);  // below a list: a line of its own
  return lists_shown(text);
}

int distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      int above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row.back();
}
}  // namespace

Error::Error(Exit code, std::string_view where, std::string_view what, std::string_view hint)
    : std::runtime_error(compose(where, what, hint)), code_(code), hint_(hint) {}

int64_t div_exact(int64_t a, int64_t b, std::string_view where) {
  if (b == 0 || a % b != 0) throw InternalError(where, std::to_string(a) + " is not divisible by " + std::to_string(b));
  return a / b;
}

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known, size_t count) {
  std::vector<std::pair<int, std::string>> scored;
  constexpr size_t kMost = 256;  // the names of strangers may have megabytes
  for (const auto& name : known)
    scored.emplace_back(distance(word.substr(0, kMost), std::string_view(name).substr(0, kMost)), name);
  std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> result;
  for (size_t i = 0; i < std::min(count, scored.size()); ++i) result.push_back(scored[i].second);
  return result;
}

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
