#include "tessera/base/text.h"

#include <cstdio>

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

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    const auto byte = static_cast<unsigned char>(c);
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\u%04X", byte);
    if (c == '\n')
      out += "\\n";
    else if (byte < 0x20 || byte == 0x7f)  // TOML allows none of them
      out += escape;
    else
      out += c;
  }
  return out + "\"";
}

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
