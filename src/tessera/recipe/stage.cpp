#include "tessera/recipe/stage.h"

#include "tessera/recipe/recipe_table.h"

namespace tessera::recipe {

namespace {

/// "key = value", as TOML.
std::string key_line(const std::string& name, const std::string& value) {
  if (value.empty()) return name + (recipe_table().find(name)->kind == Kind::list ? " = []" : " = \"\"");
  Values one = recipe_table().defaults();
  for (auto& [key, text] : one) text.clear();
  one[name] = value;
  const std::string table = recipe_table().to_toml(one);  // [data]\nframes = 33\n
  const size_t begin = table.find('\n') + 1;
  return name.substr(0, name.rfind('.') + 1) + table.substr(begin, table.size() - begin - 1);
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
