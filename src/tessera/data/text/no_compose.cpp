// A build without ICU: texts keep the order of their marks, letters beyond ASCII their case. compose.cpp is the other one.
#include "tessera/data/text/text.h"

namespace tessera::data {

std::string compose(std::string text) { return text; }

std::string lower_case(const std::string& text) {
  std::string lower = text;
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string compatible(int32_t point) {
  std::string text;  // half-width letters, that it is asked for, take three bytes
  for (const int shift : {12, 6, 0})
    text += static_cast<char>((shift == 12 ? 0xE0 : 0x80) | ((point >> shift) & (shift == 12 ? 0xF : 0x3F)));
  return text;
}

Letter category_of(int32_t point) {
  if (point >= '0' && point <= '9') return Letter::number;
  const int32_t lower = point | 0x20;
  return point > 0x7F || (lower >= 'a' && lower <= 'z') ? Letter::letter : Letter::other;
}

}  // namespace tessera::data
