#pragma once
// Names of enumeration values, in the order of the values.
//
//   constexpr std::array<std::string_view, 2> kColours = {"red", "green"};
//   Colour colour = named<Colour>(kColours, text, "plan.colour");
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"

namespace tessera {

[[noreturn]] inline void unknown_name(std::string_view where, std::string_view text,
                                      const std::vector<std::string>& words) {
  throw UserError(Exit::usage, where, "unknown value '" + std::string(text) + "'",
                  "did you mean " + nearest(text, words).front() + "?");
}

/// The value named `text`. Throws UserError (usage) at `where` with the nearest name.
template <typename Value, size_t n>
Value named(const std::array<std::string_view, n>& words, std::string_view text, std::string_view where) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<Value>(found - words.begin());
  unknown_name(where, text, {words.begin(), words.end()});
}

}  // namespace tessera
