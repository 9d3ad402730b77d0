#pragma once
// Texts in quotes, for TOML files and for messages.
//
//   "name = " + in_quotes(name)                            // name = "a \"b\""
#include <string>
#include <string_view>

namespace tessera {

/// A TOML basic string: in double quotes, with quotes, backslashes and line ends escaped.
std::string in_quotes(std::string_view text);

}  // namespace tessera
