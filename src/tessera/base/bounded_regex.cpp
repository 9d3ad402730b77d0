#include "tessera/base/bounded_regex.h"

#include <algorithm>
#include <charconv>
#include <regex>

namespace tessera {

namespace {

constexpr size_t kLongest = 256, kLongestName = 1024;
constexpr int kMostCopies = 16;

/// How often {n} and {m,n} write out what they follow: an expression has its states that many times at most.
int copies(const std::string& expression) {
  int product = 1;
  for (size_t at = expression.find('{'); at != expression.npos; at = expression.find('{', at + 1)) {
    int most = 1;
    for (const char* c = expression.data() + at + 1; c != expression.data() + expression.size() && *c != '}';) {
      int number = 0;
      const auto [end, error] = std::from_chars(c, expression.data() + expression.size(), number);
      if (error != std::errc() && end != c) return kMostCopies + 1;  // beyond an int
      most = std::max(most, number);
      c = end == c ? c + 1 : end;
    }
    if (most > kMostCopies) return most;
    product *= most;
    if (product > kMostCopies) return product;
  }
  return product;
}

bool looks_around(const std::string& expression) {
  for (size_t at = expression.find("(?"); at != expression.npos; at = expression.find("(?", at + 1))
    if (expression.compare(at, 3, "(?:") != 0) return true;
  return false;
}

}  // namespace

std::optional<BoundedRegex> BoundedRegex::parse(const std::string& expression) {
  if (expression.size() > kLongest || looks_around(expression) || copies(expression) > kMostCopies) return std::nullopt;
  try {
    // libstdc++'s other executor goes back and tries again, without end for (a*)*b, and as deep as the name is long.
    std::regex regex(expression, std::regex::ECMAScript | std::regex_constants::__polynomial);
    return BoundedRegex([regex = std::move(regex)](const std::string& name) {
      return name.size() <= kLongestName && std::regex_match(name, regex);
    });
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

}  // namespace tessera
