#include "tessera/recipe/recipe_file.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/options.h"
#include "tessera/base/text.h"
#include "tessera/base/toml_text.h"
#include "tessera/recipe/recipe_checks.h"

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
