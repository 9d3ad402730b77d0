#include "tessera/recipe/stage.h"

#include "tessera/recipe/recipe_table.h"

namespace tessera::recipe {

namespace {

/// "key = value", as TOML.
std::string key_line(const std::string& name, const std::string& value) {
  return name + " = " + toml_value(*recipe_table().find(name), value);
}

}  // namespace

std::string stages_toml(const std::vector<Stage>& stages) {
  std::string text;
  for (const Stage& stage : stages) {
    text += "\n[[stage]]\nfrom = " + std::to_string(stage.from) + "\n";
    for (const auto& [name, value] : stage.changes) text += key_line(name, value) + "\n";
  }
  return text;
}

std::string changes_text(const Stage& stage) {
  std::string text;
  for (const auto& [name, value] : stage.changes) text += (text.empty() ? "" : ", ") + key_line(name, value);
  return text;
}

}  // namespace tessera::recipe
