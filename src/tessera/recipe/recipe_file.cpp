#include "tessera/recipe/recipe_file.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "tessera/base/check.h"

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "tessera/base/foreign_file.h"
#include "tessera/base/options.h"
#include "tessera/base/text.h"
#include "tessera/base/toml_text.h"

namespace tessera::recipe {

namespace {

std::string scalar_text(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) {
    char digits[32];  // as few as give the same number back
    const auto end = std::to_chars(digits, digits + sizeof digits, number->get()).ptr;
    return {digits, end};
  }
  throw UserError(Exit::usage, where, "expected a text, a number or a list of them", "see tessera train --help");
}

/// Lists of tables, and what their `match` names.
constexpr std::pair<const char*, const char*> kTables[] = {{"plan.units", "units"}, {"train.group", "parameters"}};

/// A [[plan.units]] table as the line that it is in a resolved recipe: "blocks.* strategy=shard_grad_op"; `name` is that of
/// the list.
std::string table_line(const toml::table& table, const std::string& name, const char* named, const std::string& where) {
  const toml::node* match = table.get("match");
  if (!match || !match->is_string())
    throw UserError(Exit::usage, where, "[[" + name + "]] without match = \"PATTERN\"",
                    "name the " + std::string(named) + " that it is for, for example match = \"blocks.*\"");
  std::string line = match->as_string()->get();
  const auto add = [&](const std::string& key, const toml::node& node) {
    line += " " + key + "=" + scalar_text(node, where + ": [[" + name + "]] " + key);
  };
  for (const auto& [key, node] : table) {
    const std::string word(key.str());
    if (word == "match") continue;
    if (const toml::table* inner = node.as_table())
      for (const auto& [site, policy] : *inner) add(word + "." + std::string(site.str()), policy);
    else
      add(word, node);
  }
  return line;
}

/// `place` names file and stage in messages.
void read_table(const toml::table& table, const std::string& prefix, const std::string& place,
                std::vector<FileKey>& keys) {
  const std::string where =
      place + (prefix.empty() ? std::string() : ": [" + prefix.substr(0, prefix.size() - 1) + "]");
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const auto* inner = node.as_table()) {
      read_table(*inner, name + ".", place, keys);
    } else if (const auto* tables = node.as_array(); tables && name == "data.set") {
      for (size_t i = 0; i < tables->size(); ++i) {
        const toml::table* one = (*tables)[i].as_table();
        if (!one)
          throw UserError(Exit::usage, where, "data.set: expected a table",
                          "write [[data.set]] with a line path = \"...\"");
        read_table(*one, name + "." + std::to_string(i) + ".", place, keys);
      }
    } else if (const auto* list = node.as_array()) {
      std::string joined;
      const auto tables = std::ranges::find(kTables, name, &std::pair<const char*, const char*>::first);
      for (const auto& item : *list)
        joined +=
            (tables != std::end(kTables) && item.is_table() ? table_line(*item.as_table(), name, tables->second, place)
                                                            : scalar_text(item, where)) +
            kListSeparator;
      keys.push_back({name, joined, where});
    } else {
      std::string text = scalar_text(node, where);
      if (name == "sample.prompts" && text.find(',') != std::string::npos)
        text += kListSeparator;  // one prompt with commas in it
      keys.push_back({name, text, where});
    }
  }
}

RecipeFile::Stage read_stage(const toml::node& node, const std::string& where) {
  const toml::table* table = node.as_table();
  if (!table) throw UserError(Exit::usage, where, "expected a table", "write [[stage]] with a line from = STEP");
  RecipeFile::Stage stage;
  stage.where = where;
  int said = 0;
  for (const char* word : {"from", "step"}) {  // two words for one thing: people write either
    const toml::node* value = table->get(word);
    if (!value) continue;
    ++said;
    stage.from = value->is_integer() ? value->as_integer()->get() : 0;
  }
  if (said != 1 || stage.from < 1)
    throw UserError(Exit::usage, where,
                    said == 0  ? "it does not say from which step on it holds"
                    : said > 1 ? "from and step are the same key"
                               : "from: expected the number of a step",
                    "write from = STEP once, the first step with its values");
  toml::table rest = *table;
  rest.erase("from"), rest.erase("step");
  read_table(rest, "", where, stage.keys);
  return stage;
}

/// Configurations and scripts of other programs, by the ends of their names.
void refuse_foreign(const std::string& path) {
  static constexpr std::pair<const char*, const char*> kForeign[] = {
      {".py", "a Python file"}, {".yaml", "YAML"}, {".yml", "YAML"}, {".json", "JSON"}, {".sh", "a shell script"}};
  const std::filesystem::path file(path);
  std::error_code unseen;
  if (!std::filesystem::is_regular_file(file, unseen)) return;
  for (const auto& [ending, what] : kForeign)
    if (file.extension() == ending)
      throw UserError(Exit::usage, "recipe", path + ": this is " + what + ", a recipe is TOML",
                      "tessera import " + (path.find(' ') == path.npos ? path : in_quotes(path)) +
                          " makes a recipe of another trainer's configuration or command");
}

}  // namespace

RecipeFile read_recipe_file(const std::string& given) {
  const std::string path = recipe_at(given);
  refuse_foreign(path);
  const std::string text =
      read_foreign(path, kMostTomlBytes, "recipe", "give the path of a recipe.toml, or the name of one of recipes/");
  RecipeFile file;
  try {
    toml::table table = parse_toml(text);
    if (const toml::node* stages = table.get("stage")) {
      if (!stages->is_array())
        throw UserError(Exit::usage, path, "[stage]: expected [[stage]]", "each stage is a table of a list");
      for (const toml::node& stage : *stages->as_array())
        file.stages.push_back(read_stage(stage, path + ": [[stage]] " + std::to_string(file.stages.size() + 1)));
      table.erase("stage");
    }
    read_table(table, "", path, file.keys);
  } catch (const toml::parse_error& error) {
    throw UserError(
        Exit::usage, "recipe",
        path + ", line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()),
        text.starts_with('{') ? "this is JSON, a recipe is TOML: tessera import makes a recipe of a DeepSpeed file"
                              : "correct that line; a recipe is TOML: [table], key = value, texts in \"quotes\"");
  }
  return file;
}

std::string list_as_written(const std::string& text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return text;
  try {
    const toml::table table = parse_toml("list = " + text);
    const toml::array* list = table["list"].as_array();
    std::string joined;
    for (size_t i = 0; list && i < list->size(); ++i) joined += scalar_text((*list)[i], "") + kListSeparator;
    return list && table.size() == 1 ? joined : text;
  } catch (const std::exception&) {  // no list of TOML, or one of lists
    return text;
  }
}

}  // namespace tessera::recipe

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
