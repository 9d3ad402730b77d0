#include "tessera/base/distinct_seconds.h"

#include <algorithm>
#include <cstdio>

#include "tessera/base/units.h"

namespace tessera {

std::pair<std::string, std::string> format_distinct_seconds(double seconds, double others) {
  constexpr int kMostDigits = 6;
  using Pair = std::pair<std::string, std::string>;
  const Pair rounded = {format_seconds(seconds), format_seconds(others)};
  if (rounded.first != rounded.second) return rounded;
  const bool small = std::max(seconds, others) < 0.9995;  // the unit that format_seconds chooses
  const auto in_digits = [small](double time, int digits) {
    char text[48];
    std::snprintf(text, sizeof text, small ? "%.*f ms" : "%.*f s", digits, small ? time * 1e3 : time);
    return std::string(text);
  };
  for (int digits = 1; digits <= kMostDigits; ++digits)
    if (Pair text = {in_digits(seconds, digits), in_digits(others, digits)}; text.first != text.second) return text;
  return rounded;
}

}  // namespace tessera
