#pragma once
// TOML of strangers: what toml++ would not survive is refused before it sees the text.
//
//   const toml::table root = parse_toml(text, "a.toml");    // throws toml::parse_error as toml::parse does
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include <toml++/toml.h>

namespace tessera {

struct TomlProblem {
  int line = 0;
  const char* what = "";
};

inline constexpr int64_t kMostTomlBytes = int64_t{8} << 20;

/// The first of: more than kMostTomlBytes, what is no UTF-8, a letter beyond ASCII outside of quotes and comments or behind a
/// backslash, a quote, bracket or equals sign within a number (toml++ 3.3 runs into undefined behaviour there), brackets within
/// brackets or dotted keys of more than 32 levels. None of these: the same TOML, in which a letter beyond ASCII that begins the
/// line behind a backslash is \UXXXXXXXX, since toml++ 3.3 asks whether it is a blank, undefined behaviour for most letters.
std::variant<TomlProblem, std::string> readable_toml(std::string_view text);

inline toml::table parse_toml(std::string_view text, const std::string& file = {}) {
  const auto found = readable_toml(text);
  if (const auto* problem = std::get_if<TomlProblem>(&found)) {
    const toml::source_position place{static_cast<toml::source_index>(problem->line), 1};
    throw toml::parse_error(problem->what, toml::source_region{place, place, nullptr});
  }
  return toml::parse(std::get<std::string>(found), file);
}

}  // namespace tessera
