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

namespace {
std::string lines(const std::vector<Problem>& list, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, list.size()); ++i) text += "\n  " + list[i].where + ": " + list[i].what;
  if (list.size() > most) text += "\n  and " + std::to_string(list.size() - most) + " more";
  return text;
}
}  // namespace

std::string Problems::text(size_t most) const {
  return std::to_string(size()) + (size() == 1 ? " row has a problem:" : " rows have problems:") + lines(list_, most);
}

std::string Problems::left_out_text(size_t most) const {
  if (left_out_.empty()) return {};
  return std::to_string(left_out_.size()) + (left_out_.size() == 1 ? " clip is" : " clips are") +
         " too short and left out:" + lines(left_out_, most);
}

std::string Problems::whole_text() const {
  std::string text = empty() ? "" : this->text();
  if (!left_out_.empty()) text += (text.empty() ? "" : "\n") + left_out_text();
  if (text.empty())
    for (const std::string& note : notes_) text += (text.empty() ? "" : "\n") + note;
  return text;
}

}  // namespace tessera::data
