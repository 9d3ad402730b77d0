#pragma once
// Text of strangers on its way to a terminal or a page: names of files, tensors and flags may hold any byte.
//
//   std::printf("%s\n", printable(entry.name).c_str());     // "blocks\x1b[2J" is shown, not obeyed
#include <string>
#include <string_view>

namespace tessera {

enum class Lines { escaped, kept };

/// UTF-8 stays; control characters (those of C1 among them), marks that turn the direction of writing, and bytes that are
/// no UTF-8 become \xNN or \u{NNNN}. With `Lines::kept`, line ends and tabs of a text of several lines stay too.
std::string printable(std::string_view text, Lines lines = Lines::escaped);

/// A foreign name, fit for a message: printable, in quotes, of at most 120 bytes.
std::string shown(std::string_view name);

}  // namespace tessera
