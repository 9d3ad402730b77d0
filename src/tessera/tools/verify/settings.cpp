#include "tessera/tools/verify/settings.h"

#include <algorithm>

namespace tessera::tools {

std::vector<std::pair<std::string, Settings>> Settings::items() const {
  std::vector<std::pair<std::string, Settings>> all;
  for (const auto& [key, value] : json_->items()) {
    all.emplace_back(key, at(key));
    if (value.is_structured() && value.empty()) all.back().second.read();
  }
  return all;
}

std::vector<Settings> Settings::elements() const {
  std::vector<Settings> all;
  for (size_t i = 0; i < json_->size(); ++i) all.push_back(at(i));
  return all;
}

/// Whether the value itself, or something that it is a part of, was read or asked for.
bool Settings::is_read(const std::string& path, const std::set<std::string>& asked) const {
  if (root_->read.count(path)) return true;
  return std::ranges::any_of(root_->handed_on, [&](const std::string& begin) {
    return path.starts_with(begin + "/") && asked.count(path.substr(begin.size() + 1)) > 0;
  });
}

void Settings::collect(const Json& json, const std::string& path, const std::set<std::string>& asked,
                       std::vector<std::string>& found) const {
  if (is_read(path, asked)) return;
  if (json.is_object() && !json.empty()) {
    for (const auto& [key, value] : json.items()) collect(value, path + "/" + key, asked, found);
    return;
  }
  const auto holds = [](const Json& value) { return value.is_structured(); };
  bool parts = json.is_array() && std::ranges::any_of(json, holds);
  for (size_t i = 0; json.is_array() && i < json.size(); ++i)
    parts = parts || is_read(path + "/" + std::to_string(i), asked);  // read in part: what was not is named
  if (parts) {
    for (size_t i = 0; i < json.size(); ++i) collect(json[i], path + "/" + std::to_string(i), asked, found);
    return;
  }
  std::string name = path.empty() ? path : path.substr(1);
  std::ranges::replace(name, '/', '.');
  found.push_back(name);
}

std::vector<std::string> Settings::unread(const std::set<std::string>& asked) const {
  std::vector<std::string> found;
  if (path_.empty() && json_->is_null()) return found;  // there is no such file
  collect(*json_, path_, asked, found);
  return found;
}

}  // namespace tessera::tools
