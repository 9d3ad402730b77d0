#include "tessera/recipe/load_recipe.h"

#include <sstream>

#include "tessera/base/check.h"
#include "tessera/recipe/recipe_checks.h"
#include "tessera/recipe/recipe_file.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/recipe/stages.h"

namespace tessera::recipe {

namespace {

void set_key(Values& values, const std::string& name, const std::string& value, const std::string& where) {
  if (!recipe_table().find(name))
    throw UserError(Exit::usage, where, "unknown key '" + name + "'",
                    key_meant(name) + " tessera train --help lists keys");
  recipe_table().set(values, name, value, where);
}

/// Sets a key of one table of a list that stands in a recipe as lines ("norm_q lr=1e-5"), --train.group.0.lr 1e-5; a table
/// behind the last one begins with its match. False: `name` is no such key.
bool set_in_line(Values& values, const std::string& name, const std::string& value) {
  std::string key;
  for (const std::string list : {"train.group", "plan.units"})
    if (list_row(name).starts_with(list + ".N.")) key = list;
  if (key.empty()) return false;
  const size_t dot = name.find('.', key.size() + 1);
  const auto number = static_cast<size_t>(to_integer(name.substr(key.size() + 1, dot - key.size() - 1)));
  const std::string word = name.substr(dot + 1);
  std::vector<std::string> lines = split_list(values.at(key));
  if (number > lines.size() || (number == lines.size() && word != "match"))
    throw UserError(Exit::usage, "--" + name, key + " has " + std::to_string(lines.size()) + " tables, counted from 0",
                    "begin one more by --" + key + "." + std::to_string(lines.size()) + ".match PATTERN");
  if (number == lines.size()) lines.emplace_back();
  std::istringstream old(lines[number]);
  std::string match, rest;
  old >> match;
  for (std::string each; old >> each;)
    if (!each.starts_with(word + "=")) rest += " " + each;
  lines[number] = word == "match" ? value + rest : match + rest + " " + word + "=" + value;
  std::string all;
  for (const std::string& line : lines) all += line + kListSeparator;
  recipe_table().set(values, key, all, "--" + name);
  return true;
}

}  // namespace

Recipe load_recipe(const std::string& path, const Overrides& overrides) {
  Recipe recipe;
  recipe.values = recipe_table().defaults();
  if (!path.empty()) check_path(path);
  RecipeFile file = path.empty() ? RecipeFile{} : read_recipe_file(path);
  for (FileKey& key : file.keys) key.value = expanded(key.name, key.value, key.where);
  for (RecipeFile::Stage& stage : file.stages)
    for (FileKey& key : stage.keys) key.value = expanded(key.name, key.value, key.where);
  settle_paths(file, path);
  for (const FileKey& key : file.keys) set_key(recipe.values, key.name, key.value, key.where);
  for (const auto& [name, value] : overrides) {
    if (name == "mesh") {
      const Mesh mesh = Mesh::parse(value);
      for (Axis axis : kAllAxes)
        recipe_table().set(recipe.values, "mesh." + std::string(axis_name(axis)), std::to_string(mesh[axis]), "--mesh");
      continue;
    }
    if (set_in_line(recipe.values, name, value)) continue;
    const auto* option = recipe_table().find(name);
    const bool list = option && (option->kind == Kind::list || option->kind == Kind::paths);
    set_key(recipe.values, name, expanded(name, list ? list_as_written(value) : value, "command line"), "--" + name);
  }
  recipe.fill();
  add_stages(recipe, file);
  return recipe;
}

}  // namespace tessera::recipe
