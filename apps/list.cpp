#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/job/catalogue.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::apps {

namespace {

std::string kinds() {
  std::string text;
  for (const job::Kind& kind : job::catalogue()) text += (text.empty() ? "" : ", ") + std::string(kind.name);
  return text;
}

int print_json(const std::vector<job::Entry>& entries) {
  auto list = nlohmann::ordered_json::array();
  for (const job::Entry& entry : entries) {
    nlohmann::ordered_json row = {{"name", entry.name}};
    for (const auto& [heading, value] : entry.facts) row[heading] = value;
    list.push_back(row);
  }
  std::puts(list.dump(2).c_str());
  return 0;
}

/// Columns as wide as their longest value; the last one ends where it ends.
void print_table(const job::Kind& kind, const std::vector<job::Entry>& entries) {
  std::vector<std::vector<std::string>> rows = {{std::string(kind.key)}};
  for (const auto& [heading, value] : entries.front().facts) rows[0].push_back(heading);
  for (const job::Entry& entry : entries) {
    rows.push_back({entry.name});
    for (const auto& [heading, value] : entry.facts) rows.back().push_back(value);
  }
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += row[i] + (i + 1 < row.size() ? std::string(widths[i] - row[i].size() + 2, ' ') : "");
    std::puts(line.c_str());
  }
}

int run_list(const Arguments& arguments) {
  if (arguments.words.empty())
    throw UserError(Exit::usage, "list", "the kind of entries is missing", "give one of " + kinds() + ", schema");
  if (arguments.only_word("kind") == "schema") {
    std::puts(recipe::recipe_schema().dump(2).c_str());
    return 0;
  }
  const job::Kind& kind = job::catalogue_kind(arguments.only_word("kind"));
  if (arguments.has("--files") && kind.name != "presets")
    throw UserError(Exit::usage, "list", "--files is of presets, not of " + std::string(kind.name),
                    "tessera list presets --files");
  const std::vector<job::Entry> entries = arguments.has("--files") ? job::preset_files() : kind.entries();
  if (arguments.has("--json")) return print_json(entries);
  print_table(kind, entries);
  return 0;
}

}  // namespace

Command list_command() {
  Command c;
  c.name = "list";
  c.summary = "Lists what a recipe can name.\nThese are " + kinds() +
              "; `tessera list schema` prints a JSON schema, for editors that complete and check recipes.";
  c.usage = "list presets|autoencoders|encoders|profiles|optimizers|schema [--json] [--files]";
  c.flags = {{"--json", "", "print JSON"},
             {"--files", "", "of presets: where their weights come from, with the commands that fetch them"}};
  c.example = "tessera list presets";
  c.run = run_list;
  return c;
}

}  // namespace tessera::apps
