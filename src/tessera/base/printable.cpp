#include "tessera/base/printable.h"

#include <cstdio>

#include "tessera/base/utf8.h"

namespace tessera {

namespace {

bool turns_writing(uint32_t code) {
  return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

/// Line and paragraph separators end lines too.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029;
}

}  // namespace

std::string printable(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8 c = utf8_at(text, i);
    const bool stays = lines == Lines::kept && (c.code == '\n' || c.code == '\t');
    char form[16] = "";
    if (!c.valid || (is_control(c.code) && !stays && c.code < 0x80))
      std::snprintf(form, sizeof form, "\\x%02x", c.code);
    else if ((is_control(c.code) && !stays) || turns_writing(c.code))
      std::snprintf(form, sizeof form, "\\u{%x}", c.code);
    if (form[0])
      out += form;
    else
      out += text.substr(i, c.bytes);
    i += c.bytes;
  }
  return out;
}

std::string shown(std::string_view name) {
  constexpr size_t kMost = 120;
  if (name.size() <= kMost) return "'" + printable(name) + "'";
  size_t end = kMost;
  while (end > kMost - 3 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80) --end;  // not within a character
  return "'" + printable(name.substr(0, end)) + "...'";
}

}  // namespace tessera
