#include "tessera/data/text/mojibake.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/text.h"

namespace tessera::data {

namespace {

/// Bytes 0x80..0x9F of Windows-1252; those that mean nothing there stand for themselves.
constexpr std::array<uint32_t, 32> kHigh = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                            0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                            0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                            0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

std::optional<uint8_t> byte_in_1252(uint32_t point) {
  const bool high = point >= 0x80 && point < 0xA0;
  if (point <= 0xFF && !high) return static_cast<uint8_t>(point);
  const auto found = std::ranges::find(kHigh, point);
  if (found == kHigh.end()) return std::nullopt;
  return static_cast<uint8_t>(0x80 + (found - kHigh.begin()));
}
std::optional<uint8_t> byte_in_latin(uint32_t point) {
  return point <= 0xFF ? std::optional(static_cast<uint8_t>(point)) : std::nullopt;
}

/// What ftfy (6.3, badness.py) counts as a sign of the mistake, of the pairs that these encodings have. Behind "Ã" and
/// "Â" it leaves those that occur in right text too.
bool looks_wrong(const std::vector<uint32_t>& line) {
  constexpr std::array<uint32_t, 6> kInRightText = {0xA5, 0x201E, 0x2026, 0x152, 0x17D, 0x2019};
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] >= 0x80 && line[i] <= 0x9F) return true;
    if (i + 1 == line.size()) continue;
    if (line[i] == 0xE2 && line[i + 1] == 0x20AC) return true;
    const auto byte = byte_in_1252(line[i + 1]);
    const bool follows =
        byte && *byte >= 0x80 && *byte < 0xC0 && std::ranges::find(kInRightText, line[i + 1]) == kInRightText.end();
    if ((line[i] == 0xC2 || line[i] == 0xC3) && follows) return true;
  }
  return false;
}

bool is_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8 character = utf8_at(text, at);
    if (!character.valid) return false;
    at += character.bytes;
  }
  return true;
}

/// One step for a line; empty: there is none.
std::optional<std::string> repaired_once(const std::string& text) {
  std::vector<uint32_t> points;
  for (size_t at = 0; at < text.size();) {
    const Utf8 character = utf8_at(text, at);
    if (!character.valid) return std::nullopt;
    points.push_back(character.code), at += character.bytes;
  }
  if (!looks_wrong(points)) return std::nullopt;
  for (const auto byte_in : {byte_in_latin, byte_in_1252}) {
    std::string bytes;
    for (const uint32_t point : points)
      if (const auto byte = byte_in(point)) bytes += static_cast<char>(*byte);
    if (bytes.size() == points.size() && is_utf8(bytes)) return bytes;
  }
  return std::nullopt;
}

}  // namespace

std::string repair_encoding(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    while (auto repaired = repaired_once(line)) line = std::move(*repaired);  // each is shorter
    out += line;
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

}  // namespace tessera::data
