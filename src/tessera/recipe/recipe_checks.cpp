#include "tessera/recipe/recipe_checks.h"

#include <filesystem>

#include "tessera/base/check.h"

namespace tessera::recipe {

void check_path(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return;
  const fs::path inside = fs::path(path) / "recipe.toml";
  throw UserError(Exit::usage, "recipe", path + " is a folder, expected a recipe, a TOML file",
                  fs::exists(inside) ? "did you mean " + inside.string() + "?" : "recipes/ has examples");
}

}  // namespace tessera::recipe
