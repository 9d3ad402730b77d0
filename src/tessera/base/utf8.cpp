#include "tessera/base/utf8.h"

namespace tessera {

Utf8 utf8_at(std::string_view text, size_t i) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const uint32_t first = byte(i);
  if (first < 0x80) return {first, 1, true};
  const size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4 || text.size() - i <= more) return {first, 1, false};
  uint32_t code = first & (0x3fU >> more);
  for (size_t k = 1; k <= more; ++k) {
    if ((byte(i + k) & 0xc0U) != 0x80) return {first, 1, false};
    code = code << 6 | (byte(i + k) & 0x3fU);
  }
  constexpr uint32_t kLeast[] = {0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[more - 1] || code > 0x10ffff || surrogate) return {first, 1, false};
  return {code, more + 1, true};
}

}  // namespace tessera
