// A build without ICU: texts keep the order of their marks, letters beyond ASCII their case. compose.cpp is the other one.
#include "tessera/data/text.h"

namespace tessera::data {

std::string compose(std::string text) { return text; }

std::string lower_case(const std::string& text) {
  std::string lower = text;
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

}  // namespace tessera::data
