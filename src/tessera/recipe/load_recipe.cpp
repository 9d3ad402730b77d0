#include "tessera/recipe/load_recipe.h"

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
    const auto* option = recipe_table().find(name);
    const bool list = option && (option->kind == Kind::list || option->kind == Kind::paths);
    set_key(recipe.values, name, expanded(name, list ? list_as_written(value) : value, "command line"), "--" + name);
  }
  recipe.fill();
  add_stages(recipe, file);
  return recipe;
}

}  // namespace tessera::recipe
