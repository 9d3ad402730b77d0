#include "tessera/recipe/recipe_checks.h"

#include <cctype>
#include <cstdlib>
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

namespace {

/// The value of a variable in a path.
std::string variable(const std::string& name, const std::string& path, const std::string& what) {
  if (const char* value = std::getenv(name.c_str())) return value;
  throw UserError(Exit::usage, what, "'" + path + "': the variable " + name + " is not set",
                  "set it (export " + name + "=...), or write the whole path");
}

bool in_name(char c, bool first) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '_' || (first ? std::isalpha(byte) : std::isalnum(byte)) != 0;
}

}  // namespace

std::string expand_path(const std::string& path, const std::string& what) {
  std::error_code unseen;
  if ((!path.starts_with('~') && path.find('$') == path.npos) || fs::exists(path, unseen)) return path;
  std::string text;
  size_t at = 0;
  if (path.starts_with('~')) {
    if (path.size() > 1 && path[1] != '/')
      throw UserError(Exit::usage, what, "'" + path + "': only ~ and ~/ stand for a home folder, your own",
                      "write the whole path, or ./" + path + " for a file with this name");
    text = variable("HOME", path, what), at = 1;
  }
  while (at < path.size()) {
    const bool braced = path.compare(at, 2, "${") == 0;
    const size_t begin = at + (braced ? 2 : 1);
    size_t end = begin;
    if (path[at] == '$')
      while (end < path.size() && in_name(path[end], end == begin)) ++end;
    if (path[at] != '$' || end == begin || (braced && (end == path.size() || path[end] != '}'))) {
      text += path[at++];
      continue;
    }
    text += variable(path.substr(begin, end - begin), path, what);
    at = end + (braced ? 1 : 0);
  }
  return text;
}

}  // namespace tessera::recipe
