#pragma once
// A recipe file as it was written: keys and values as text, nothing checked beyond TOML itself.
//
//   for (const FileKey& key : read_recipe_file("recipe.toml").keys) table.set(values, key.name, key.value, key.where);
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::recipe {

struct FileKey {
  std::string name;   ///< "train.lr"
  std::string value;  ///< items of a list end in kListSeparator
  std::string where;  ///< file and table, for messages
};

struct RecipeFile {
  std::vector<FileKey> keys;
  struct Stage {
    int64_t from = 0;  ///< the first step that it holds for
    std::vector<FileKey> keys;
    std::string where;  ///< "recipe.toml: [[stage]] 1"
  };
  std::vector<Stage> stages;  ///< as they stand in the file
};

/// `path` is of a file, or the name of a recipe that came with this program (recipe_checks.h).
/// Throws UserError: (input) when the file cannot be read; (usage) naming the line where it is no TOML, and a [[stage]]
/// that does not say when it begins.
RecipeFile read_recipe_file(const std::string& path);

/// A list as a recipe has it, on the command line: [64, 96] and ["comfyui"]. Other texts stay as they are.
std::string list_as_written(const std::string& text);

// Finds the file that a recipe's path or name means, refuses a path that is none before it is read, and reads the ~ and
// the variables of paths.
//
//   const std::string file = recipe_at("demo");    // in read_recipe_file

/// Throws UserError (usage) for a folder, naming the recipe in it.
void check_path(const std::string& path);

/// The file that a path means: itself where there is one. Otherwise NAME, NAME.toml and recipes/NAME.toml mean the recipe
/// among those that came with this program, where it is one of them; any other path is given back as it is.
std::string recipe_at(const std::string& path);

/// `path` as a shell would read it: ~ at its beginning is $HOME, $NAME and ${NAME} are variables. A path that is there as
/// it is written stays. Throws UserError (usage) naming `what` for a variable that is not set and for ~NAME.
std::string expand_path(const std::string& path, const std::string& what);

}  // namespace tessera::recipe
