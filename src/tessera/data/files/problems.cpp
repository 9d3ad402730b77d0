#include "tessera/data/files/problems.h"

#include <algorithm>

namespace tessera::data {

void Problems::add(const std::string& where, const std::string& what, const std::string& hint) {
  if (strict_) throw UserError(Exit::input, "data.dataset", where + ": " + what, hint);
  list_.push_back({where, hint.empty() ? what : what + "; " + hint});
}

void Problems::add(const std::string& where, const Error& error) {
  std::string text = error.what();
  if (const size_t end = text.find("] "); text.starts_with('[') && end != std::string::npos) text.erase(0, end + 2);
  // An error about a clip of a folder begins with its name, which is where it was met.
  if (text.starts_with(where + ": ")) text.erase(0, where.size() + 2);
  add(where, text);
}

std::string Problems::text(size_t most) const {
  std::string text = std::to_string(size()) + (size() == 1 ? " row has a problem:" : " rows have problems:");
  for (size_t i = 0; i < std::min(most, size()); ++i) text += "\n  " + list_[i].where + ": " + list_[i].what;
  if (size() > most) text += "\n  and " + std::to_string(size() - most) + " more";
  return text;
}

}  // namespace tessera::data
