#pragma once
// Lookups by name in a table, and the error for an unknown name.
//
//   unknown_name("model.preset", preset, names_of(presets()));
#include <string>
#include <utility>
#include <vector>

namespace tessera::models {

/// Throws UserError (usage) naming the nearest of `known`, and all of them.
[[noreturn]] void unknown_name(const std::string& key, const std::string& name, const std::vector<std::string>& known);

/// Of a table of (name, config).
template <class Config>
std::vector<std::string> names_of(const std::vector<std::pair<std::string, Config>>& table) {
  std::vector<std::string> names;
  for (const auto& [name, config] : table) names.push_back(name);
  return names;
}

/// The config of that name. Throws as unknown_name.
template <class Config>
const Config& find_named(const std::vector<std::pair<std::string, Config>>& table, const std::string& key,
                         const std::string& wanted) {
  for (const auto& [name, config] : table)
    if (name == wanted) return config;
  unknown_name(key, wanted, names_of(table));
}

}  // namespace tessera::models
