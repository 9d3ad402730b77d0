#include "tessera/recipe/recipe_checks.h"

#include <filesystem>

#include "tessera/base/check.h"

namespace tessera::recipe {

namespace fs = std::filesystem;

void check_path(const std::string& path) {
  if (!fs::is_directory(path)) return;
  const fs::path inside = fs::path(path) / "recipe.toml";
  throw UserError(Exit::usage, "recipe", path + " is a folder, expected a recipe, a TOML file",
                  fs::exists(inside) ? "did you mean " + inside.string() + "?" : "recipes/ has examples");
}

std::string recipe_at(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return path;
  fs::path name = path;
  if (name.has_parent_path() && name.parent_path() != "recipes") return path;
  name = name.filename();
  if (name.extension() != ".toml") name += ".toml";
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  // beside bin/ in a wheel, in share/ where the program was installed, in the sources where it was built
  for (const char* place : {"../recipes", "../../share/tessera/recipes", "../../recipes"})
    if (const fs::path file = (folder / place / name).lexically_normal(); fs::is_regular_file(file, ignored))
      return file.string();
  return path;
}

}  // namespace tessera::recipe
