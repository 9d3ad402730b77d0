#pragma once
// Text: UTF-8 (RFC 3629) a character at a time, quotes of TOML, and text of strangers on its way to a terminal or a page,
// since names of files, tensors and flags may hold any byte.
//
//   for (size_t i = 0; i < text.size(); i += c.bytes) c = utf8_at(text, i);
//   "name = " + in_quotes(name)                             // name = "a \"b\""
//   std::printf("%s\n", printable(entry.name).c_str());     // "blocks\x1b[2J" is shown, not obeyed
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

struct Utf8 {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;  ///< false: a byte that begins no character; `bytes` is 1
};

/// The character that begins at byte `i` < text.size(). Overlong forms and surrogates are not valid.
Utf8 utf8_at(std::string_view text, size_t i);

/// A TOML basic string: in double quotes, with quotes, backslashes and line ends escaped.
std::string in_quotes(std::string_view text);

enum class Lines { escaped, kept };

/// UTF-8 stays; control characters (those of C1 among them), marks that turn the direction of writing, and bytes that are
/// no UTF-8 become \xNN or \u{NNNN}. With `Lines::kept`, line ends and tabs of a text of several lines stay too.
std::string printable(std::string_view text, Lines lines = Lines::escaped);

/// A foreign name, fit for a message: printable, in quotes, of at most 120 bytes.
std::string shown(std::string_view name);

}  // namespace tessera
