#pragma once
// UTF-8 (RFC 3629), a character at a time.
//
//   for (size_t i = 0; i < text.size(); i += c.bytes) c = utf8_at(text, i);
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

struct Utf8 {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;  ///< false: a byte that begins no character; `bytes` is 1
};

/// The character that begins at byte `i` < text.size(). Overlong forms and surrogates are not valid.
Utf8 utf8_at(std::string_view text, size_t i);

}  // namespace tessera
