#include "tessera/families/registry.h"

#include <algorithm>

#include "tessera/families/family.h"
#include "tessera/families/wan.h"

namespace tessera::families {

const std::vector<Family>& all() {
  static const std::vector<Family> table = {wan(), sana(), opensora(), stdit(), hunyuan()};
  return table;
}

const Family& standard() { return all().front(); }

Family of(std::string_view written) {
  const std::string_view name = written.substr(0, written.find('-'));
  if (name.empty()) return standard();
  const auto found = std::ranges::find(all(), name, &Family::name);
  if (found != all().end()) return *found;
  Family bare;
  bare.name = name;
  return bare;
}

const ReleasedFile* released_file(const Family& family, std::string_view role, std::string_view variant) {
  const ReleasedFile* usual = nullptr;
  for (const ReleasedFile& file : family.files) {
    if (file.role != role) continue;
    if (file.variant == variant) return &file;
    if (!usual) usual = &file;
  }
  return usual;
}

std::vector<std::string> column_names(std::vector<std::string> names, std::string_view column) {
  for (const Family& family : all())
    for (const Column& theirs : family.columns)
      if (theirs.column == column) names.push_back(theirs.name);
  return names;
}

std::vector<std::string> names_in(std::vector<std::string> Family::*field) {
  std::vector<std::string> names;
  for (const Family& family : all())
    for (const std::string& name : family.*field)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

std::vector<std::string> expert_folders(const Family& family) {
  std::vector<std::string> folders;
  for (const Expert& expert : family.experts) folders.push_back(expert.folder);
  return folders;
}

std::vector<std::string> expert_names(const Family& family) {
  std::vector<std::string> names;
  for (const Expert& expert : family.experts) names.push_back(expert.name);
  return names;
}

std::string listed(const std::vector<std::string>& words, std::string_view last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? std::string(", ") : " " + std::string(last) + " ";
    text += words[i];
  }
  return text;
}

}  // namespace tessera::families
