#include "tessera/base/quotes.h"

#include <cstdio>

namespace tessera {

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

}  // namespace tessera
