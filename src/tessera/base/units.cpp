#include "tessera/base/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tessera/base/check.h"

namespace tessera {

namespace {
constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
}

std::string format_bytes(int64_t bytes) {
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

std::string format_seconds(double s) {
  char text[48];
  const long whole = std::lround(s);
  if (s < 0.9995)
    std::snprintf(text, sizeof text, "%.0f ms", s * 1e3);
  else if (s < 60)
    std::snprintf(text, sizeof text, "%.1f s", s);
  else if (whole < 3600)
    std::snprintf(text, sizeof text, "%ld min %02ld s", whole / 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%ld h %02ld min", whole / 3600, whole % 3600 / 60);
  return text;
}

int64_t parse_bytes(std::string_view text, std::string_view key) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' '));
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double scale = unit.empty() || unit == "b" ? 1 : 0;
  double binary = 1, decimal = 1;
  // "g" and "gib" are binary, "gb" is decimal as disks are sold
  for (const std::string letter : {"k", "m", "g", "t"}) {
    binary *= 1024, decimal *= 1000;
    if (unit == letter || unit == letter + "ib") scale = binary;
    if (unit == letter + "b") scale = decimal;
  }
  if (end == copy.c_str() || scale == 0 || !(value >= 0) || value * scale > 9e18)
    throw UserError(Exit::usage, key, "'" + copy + "' is not a size",
                    "write for example 24GiB, 24GB, 512MiB or a number of bytes");
  return static_cast<int64_t>(value * scale);
}

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
