#include <ATen/Version.h>
#include <torch/version.h>
#include <algorithm>

#include "commands.h"
#include "commit.h"  // written by each build (cmake/commit.cmake)
#include "tessera/base/check.h"
#include "tessera/base/version.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::apps {

namespace {

constexpr size_t kWidth = 80, kIndent = 26;

/// The keys that most runs set.
constexpr const char* kCommonKeys[] = {
    "run.out",     "run.steps", "model.preset",       "model.path",   "train.mode",  "data.path",    "data.size",
    "data.frames", "train.lr",  "train.global_batch", "plan.profile", "plan.budget", "sample.every", "lora.rank"};

/// "  NAME    help", wrapped, with what follows the first line under the help.
std::string row(const std::string& name, const std::string& help) {
  std::string text, line = "  " + name;
  if (line.size() + 1 > kIndent) {
    text += line + "\n";
    line.clear();
  }
  line.resize(kIndent, ' ');
  size_t begin = 0;
  while (begin < help.size()) {
    const size_t end = std::min(help.find(' ', begin), help.size());
    const std::string word = help.substr(begin, end - begin);
    if (line.size() > kIndent && line.size() + 1 + word.size() > kWidth) {
      text += line + "\n";
      line.assign(kIndent, ' ');
    }
    line += (line.size() > kIndent ? " " : "") + word;
    begin = end + 1;
  }
  return text + line + "\n";
}

std::string names(const Flag& flag) {
  return (flag.alias.empty() ? "" : flag.alias + ", ") + flag.name + (flag.value.empty() ? "" : " " + flag.value);
}

std::string described(const Option& option) {
  std::string text = option.help;
  if (!option.choices.empty()) {
    std::string choices = option.choices;
    for (size_t at = 0; (at = choices.find('|', at)) != choices.npos; at += 2) choices.replace(at, 1, ", ");
    text += " (" + choices + ")";
  }
  return option.fallback.empty() ? text : text + " [" + option.fallback + "]";
}

/// Up to the first clause: enough to know whether this is the key one looks for.
std::string in_short(const Option& option) {
  constexpr size_t kFewChoices = 24;
  std::string text = option.help.substr(0, option.help.find_first_of(";:"));
  if (!option.choices.empty() && option.choices.size() < kFewChoices) text += " (" + option.choices + ")";
  return option.fallback.empty() ? text : text + " [" + option.fallback + "]";
}

std::string table_of(const Option& option) { return option.name.substr(0, option.name.find('.')); }

std::vector<std::string> tables() {
  std::vector<std::string> found;
  for (const Option& option : recipe::recipe_table().options())
    if (found.empty() || found.back() != table_of(option)) found.push_back(table_of(option));
  return found;
}

std::string keys_of(const std::string& table) {
  std::string text = "[" + table + "]\n";
  for (const Option& option : recipe::recipe_table().options())
    if (table_of(option) == table) text += row("--" + option.name, described(option));
  for (const Option& option : recipe::recipe_table().of_lists())
    if (table_of(option) == table) text += row("--" + option.name, described(option));
  return text;
}

/// Wrapped, so that no optional part is torn.
std::string usage_of(const Command& command) {
  std::string text, line = "tessera";
  size_t begin = 0;
  while (begin < command.usage.size()) {
    size_t end = command.usage.find(' ', begin);
    if (command.usage[begin] == '[')
      end = command.usage.find("] ", begin) == std::string::npos ? std::string::npos
                                                                 : command.usage.find("] ", begin) + 1;
    const std::string part = command.usage.substr(begin, end - begin);
    if (line.size() + 1 + part.size() > kWidth) {
      text += line + "\n";
      line = "    ";
    }
    line += " " + part;
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return text + line + "\n";
}

std::string begin_of(const Command& command) {
  std::string text = usage_of(command) + "\n" + command.summary + "\n";
  if (!command.flags.empty()) text += "\nFlags\n";
  for (const Flag& flag : command.flags) text += row(names(flag), flag.help);
  return text;
}

std::string foreign_options(const Command& command) {
  if (command.foreign.empty()) return "";
  std::string list;
  for (const Flag& flag : command.foreign) list += (list.empty() ? "" : " ") + flag.name;
  return "\nOptions of other programs (tessera import --table lists them all)\n" + row("", list);
}

}  // namespace

std::string help(const Command& command) {
  std::string text = begin_of(command);
  if (command.recipe_keys) {
    text += "\nCommon recipe keys, as flags (a flag wins over the file)\n";
    for (const char* key : kCommonKeys)
      text += row(std::string("--") + key, in_short(recipe::recipe_table().at(key, "")));
    text += row("--mesh AXIS=N,...", "axes pp, dp_replicate, dp_shard, cp, sp, tp");
  }
  text += "\nExample\n  " + command.example + "\n";
  if (!command.recipe_keys) return text;
  std::string list;
  for (const std::string& table : tables()) list += (list.empty() ? "" : ", ") + table;
  text += "\nMore help\n" + row("--help TABLE", "all keys of a table: " + list);
  return text +
         row("--help-all", "all keys" + std::string(command.foreign.empty() ? "" : ", and options of other programs"));
}

std::string help_on(const Command& command, const std::string& table) {
  const std::vector<std::string> known = tables();
  if (!command.recipe_keys || std::find(known.begin(), known.end(), table) == known.end())
    throw UserError(Exit::usage, command.name, "--help " + table + ": no table of recipe keys has this name",
                    command.recipe_keys ? "did you mean " + nearest(table, known).front() + "?"
                                        : "tessera " + command.name + " --help prints all of its flags");
  return keys_of(table);
}

std::string help_all(const Command& command) {
  std::string text = begin_of(command) + foreign_options(command) + "\nExample\n  " + command.example + "\n";
  if (!command.recipe_keys) return text;
  text += "\nRecipe keys, as flags (a flag wins over the file)\n" +
          row("--mesh AXIS=N,...", "all axes of [mesh] in one flag");
  for (const std::string& table : tables()) text += "\n" + keys_of(table);
  return text;
}

std::string version() {
  const std::string commit = TESSERA_COMMIT;
  std::string text = "tessera ";  // appended to: GCC 12 warns of its own operator+ here
  text.append(kVersion);
  if (!commit.empty()) text.append(" (commit ").append(commit).append(")");
  return text.append("\nLibTorch ").append(TORCH_VERSION).append(", ").append(at::get_cpu_capability()).append("\n");
}

}  // namespace tessera::apps
