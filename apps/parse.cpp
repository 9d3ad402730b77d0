#include <algorithm>
#include <charconv>
#include <cmath>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/recipe/recipe_file.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::apps {

namespace {

/// --nproc_per_node is --nproc-per-node: torchrun takes both.
std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const Flag* find_flag(const Command& command, const std::string& typed) {
  const std::string name = with_dashes(typed);
  for (const auto& flag : command.flags)
    if (flag.name == name || (!flag.alias.empty() && flag.alias == name) ||
        std::find(flag.also.begin(), flag.also.end(), name) != flag.also.end())
      return &flag;
  return nullptr;
}

/// --nnodes=2, -n=2 and -n2 have their value with them: cuts it off `word`. Whether there was one.
bool cut_value(const Command& command, std::string& word, std::string& value) {
  const size_t equal = word.find('=');
  if (equal != std::string::npos && (word.starts_with("--") || find_flag(command, word.substr(0, equal)))) {
    value = word.substr(equal + 1), word.resize(equal);
    return true;
  }
  constexpr size_t kShort = 2;  // a dash and a letter
  if (word.starts_with("--") || word.size() <= kShort || find_flag(command, word)) return false;
  const Flag* flag = find_flag(command, word.substr(0, kShort));
  if (!flag || flag->value.empty()) return false;
  value = word.substr(kShort), word.resize(kShort);
  return true;
}

const Flag* find_foreign(const Command& command, const std::string& name) {
  for (const auto& flag : command.foreign)
    if (flag.name == name) return &flag;
  return nullptr;
}

bool is_bool(const std::string& word) { return word == "true" || word == "false" || word == "True" || word == "False"; }

/// Whether a flag's value may be left out.
bool is_optional(const Flag& flag) { return flag.value == kOptionalBool || flag.value == kOptionalPicture; }

/// Whether the word after a flag with an optional value is that value.
bool is_value_of(const Flag& flag, const std::string& word) {
  return flag.value == kOptionalBool ? is_bool(word) : word.ends_with(".svg") || word.ends_with(".html");
}

/// What to do about a flag that the command lacks.
std::string instead_of(const Command& command, const std::string& name) {
  for (const Elsewhere& other : command.elsewhere)
    if (other.name == with_dashes(name)) return other.instead;
  const Command launcher = launch_command();
  std::string start = name, rest;
  cut_value(launcher, start, rest);
  if (command.name != launcher.name && find_flag(launcher, start))
    return "it belongs to the launcher, before the command: tessera launch -n 2 " + command.name + " ...";
  if (command.recipe_keys)  // --lr
    if (const auto keys = recipe::keys_named(name.substr(name.find_first_not_of('-'))); !keys.empty())
      return "recipe keys are written with their table; " + recipe::key_meant(name.substr(name.find_first_not_of('-')));
  std::vector<std::string> known = {"--help"};
  for (const auto& flag : command.flags) known.push_back(flag.name);
  for (const auto& flag : command.foreign) known.push_back(flag.name);
  if (command.recipe_keys) {
    known.push_back("--mesh");
    for (const auto& option : recipe::recipe_table().options()) known.push_back("--" + option.name);
  }
  return "did you mean " + nearest(name, known).front() + "? See tessera " + command.name + " --help";
}

/// A flag's value with ~ and variables read, where it is a path or a list of them: a shell leaves `--out=~/a` as it is.
std::string expanded(const Flag& flag, const std::string& value) {
  if (flag.value.find("FILE") == std::string::npos && flag.value.find("DIR") == std::string::npos) return value;
  const bool list = flag.value.ends_with(",...");
  std::string text;
  for (size_t at = 0; at < value.size();) {
    const size_t end = list ? std::min(value.find(',', at), value.size()) : value.size();
    text += (at > 0 ? "," : "") + recipe::expand_path(value.substr(at, end - at), flag.name);
    at = end + 1;
  }
  return text;
}

[[noreturn]] void unknown_flag(const Command& command, const std::string& name) {
  throw UserError(Exit::usage, command.name, "unknown flag " + name, instead_of(command, name));
}

}  // namespace

bool Arguments::has(const std::string& flag) const {
  return std::any_of(flags.begin(), flags.end(), [&](const auto& f) { return f.first == flag; });
}
std::string Arguments::value(const std::string& flag, const std::string& absent) const {
  const auto all_values = values(flag);
  return all_values.empty() ? absent : all_values.back();
}
std::vector<std::string> Arguments::values(const std::string& flag) const {
  std::vector<std::string> found;
  for (const auto& [name, value] : flags)
    if (name == flag) found.push_back(value);
  return found;
}
double Arguments::number(const std::string& flag, double absent) const {
  if (!has(flag)) return absent;
  const std::string text = value(flag);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= 0) || std::isinf(number))
    throw UserError(Exit::usage, command->name, flag + " " + text + ": expected a number, at least 0");
  return number;
}
const std::string& Arguments::only_word(const std::string& what) const {
  if (words.empty()) throw UserError(Exit::usage, command->name, "no " + what + " given", "tessera " + command->usage);
  if (words.size() > 1)
    throw UserError(Exit::usage, command->name, "'" + words[1] + "' is one word too many", "tessera " + command->usage);
  return words.front();
}

Arguments parse(const Command& command, const std::vector<std::string>& typed) {
  Arguments arguments;
  arguments.command = &command;
  arguments.all = typed;
  for (size_t i = 0; i < typed.size(); ++i) {
    std::string word = typed[i];
    if (word.size() < 2 || word[0] != '-') {
      arguments.words.push_back(word.starts_with("~/") ? recipe::expand_path(word, command.name) : word);
      if (!command.rest_is_verbatim) continue;
      arguments.words.insert(arguments.words.end(), typed.begin() + static_cast<long>(i) + 1, typed.end());
      break;
    }
    std::string value;
    const bool attached = cut_value(command, word, value);
    const Flag* own = find_flag(command, word);
    const Flag* flag = own ? own : find_foreign(command, word);
    const bool recipe_key =
        command.recipe_keys && word.starts_with("--") && (word == "--mesh" || word.find('.') != std::string::npos);
    if (!flag && !recipe_key) unknown_flag(command, word);
    if (!flag && word != "--mesh" && !recipe::recipe_table().find(word.substr(2))) unknown_flag(command, word);
    if (!attached && flag && is_optional(*flag)) {
      if (i + 1 < typed.size() && is_value_of(*flag, typed[i + 1])) value = typed[++i];
    } else if (!attached && (!flag || !flag->value.empty())) {
      if (i + 1 >= typed.size())
        throw UserError(Exit::usage, command.name, word + " needs a value", "see tessera " + command.name + " --help");
      value = typed[++i];
    }
    if (own)
      arguments.flags.emplace_back(own->name, expanded(*own, value));
    else if (flag)
      arguments.foreign.emplace_back(flag->name, value);
    else
      arguments.overrides.emplace_back(word.substr(2), value);
  }
  return arguments;
}

}  // namespace tessera::apps
