#pragma once
// A page of docs as a reader types it.
//
//   Page p = page("lora-in-an-hour.md");
//   put(p.recipe, "size", "[32, 32]");                       // the sizes of a tiny model
//   for (const std::string& command : p.commands) type(run.folder(), command);
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "program.h"

namespace tessera::testing {

struct Page {
  std::string recipe;                 ///< its block of TOML
  std::vector<std::string> commands;  ///< its indented lines that begin with tessera
};

inline Page page(const std::string& name) {
  std::istringstream text(text_of(std::filesystem::path(TESSERA_SOURCE_DIR) / "docs" / name));
  Page found;
  bool in_recipe = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("```"))
      in_recipe = line == "```toml";
    else if (in_recipe)
      found.recipe += line + "\n";
    else if (line.starts_with("    tessera "))
      found.commands.push_back(line.substr(4));
  }
  return found;
}

/// The value of a key that stands alone on its line; an empty one takes the line away.
inline void put(std::string& recipe, const std::string& key, const std::string& value) {
  const std::regex line("(^|\n)" + key + " = [^\n]*");
  ASSERT_TRUE(std::regex_search(recipe, line)) << key << "\n" << recipe;
  recipe = std::regex_replace(recipe, line, value.empty() ? "$1" : "$01" + key + " = " + value);
}

/// The command in a shell that stands in `folder` and finds the program.
inline Result type(const std::filesystem::path& folder, const std::string& command) {
  const std::string bin = std::filesystem::path(TESSERA_BINARY).parent_path().string();
  return run_program({"/bin/sh", "-c", "cd " + folder.string() + " && PATH=" + bin + ":$PATH && exec " + command});
}

}  // namespace tessera::testing
