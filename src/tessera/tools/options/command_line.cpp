#include "tessera/tools/options/command_line.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "tessera/base/check.h"

namespace tessera::tools {

namespace {

bool is_variable(const std::string& word) {
  const size_t equal = word.find('=');
  if (equal == std::string::npos || equal == 0) return false;
  return word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == equal;
}

bool is_option(const std::string& word) {
  // "-1" is a number
  return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9') && word[1] != '.';
}

std::string launcher_of(const std::string& word) {
  const std::string name = word.substr(word.rfind('/') + 1);
  for (const char* known : {"accelerate", "torchrun", "deepspeed", "colossalai"})
    if (name == known) return name;
  return name.starts_with("python") ? "python" : "";
}

/// NAME=VALUE of a script, in small letters too.
bool is_assignment(const std::string& word) {
  const size_t equal = word.find('=');
  if (equal == std::string::npos || equal == 0 || (word[0] >= '0' && word[0] <= '9')) return false;
  return word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789") == equal;
}

using Variables = std::map<std::string, std::string>;

std::string filled_in(const std::string& word, const Variables& variables) {
  std::string text;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool braced = word.compare(i, 2, "${") == 0;
    size_t end = i + (braced ? 2 : 1);
    while (word[i] == '$' && end < word.size() &&
           (std::isalnum(static_cast<unsigned char>(word[end])) || word[end] == '_'))
      ++end;
    const size_t begin = i + (braced ? 2 : 1);
    if (word[i] != '$' || end == begin) {
      text += word[i];
      continue;
    }
    const std::string name = word.substr(begin, end - begin);
    const auto found = variables.find(name);
    if (found == variables.end())
      throw UserError(Exit::usage, "import", "$" + name + " is not set in this script", "write its value in its place");
    text += found->second;
    i = braced ? end : end - 1;
  }
  return text;
}

/// The words of the command that starts ranks, where others stand before it; the same words where none do.
std::vector<std::string> launching_words(const std::vector<std::string>& words) {
  const auto starts = [](const std::string& word) { return !launcher_of(word).empty(); };
  auto launcher = std::find_if(words.begin(), words.end(), starts);
  if (launcher == words.end()) return words;
  const bool command = std::all_of(words.begin(), launcher, is_variable);
  Variables variables;
  if (!command)
    for (auto word = words.begin(); word != launcher; ++word)
      if (is_assignment(*word)) variables[word->substr(0, word->find('='))] = word->substr(word->find('=') + 1);
  while (launcher != words.begin() && is_variable(*(launcher - 1))) --launcher;  // of the command itself
  std::vector<std::string> result;
  for (auto word = command ? words.begin() : launcher; word != words.end(); ++word)
    if (*word != "$@") result.push_back(command ? *word : filled_in(*word, variables));
  return result;
}

}  // namespace

std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote) {
      if (c == quote)
        quote = 0;
      else if (c == '\\' && quote == '"' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\'))
        word += text[++i];
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c, begun = true;
    } else if (c == '\\' && i + 1 < text.size()) {
      if (text[++i] == '\r' && i + 1 < text.size()) ++i;
      if (text[i] != '\n') word += text[i], begun = true;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (begun) words.push_back(word);
      word.clear(), begun = false;
    } else if (c == '#' && !begun) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else {
      word += c, begun = true;
    }
  }
  if (quote)
    throw UserError(Exit::usage, "import", std::string("a quote ") + quote + " does not end in the command line",
                    "put the whole command between quotes of the other kind");
  if (begun) words.push_back(word);
  return words;
}

CommandLine read_command(const std::string& text) {
  std::vector<std::string> words = launching_words(shell_words(text));
  CommandLine line;
  auto next = words.begin();
  while (next != words.end() && is_variable(*next)) line.variables.push_back(*next++);
  const auto script_file = next != words.end() && (*next == "bash" || *next == "sh") ? next + 1 : next;
  if (script_file != words.end() && script_file->ends_with(".sh")) {
    line.script = *script_file;
    next = script_file + 1;
    if (next != words.end() && next->ends_with(".yaml")) line.words = {"--config_path", *next++};
    line.words.insert(line.words.end(), next, words.end());
    return line;
  }
  const auto script =
      std::find_if(next, words.end(), [](const std::string& word) { return word.ends_with(".py") && word != ".py"; });
  if (script != words.end()) {
    line.script = *script;
    if (next != script) line.launcher = launcher_of(*next);
    if (next != script && line.launcher.empty())
      throw UserError(Exit::usage, "import", "'" + *next + "' before " + *script + " is no launcher",
                      "accelerate launch, torchrun, deepspeed, colossalai run and python are read");
    for (; next != script; ++next)  // python -m torch.distributed.run is torchrun
      if (*next == "torch.distributed.run" || *next == "torch.distributed.launch")
        line.launcher = "torchrun";
      else if (*next != "launch" && *next != "run" && *next != "-m" && launcher_of(*next).empty())
        line.launcher_words.push_back(*next);
    next = script + 1;
    if (next != words.end() && next->ends_with(".py")) line.words = {"--config", *next++};
  }
  line.words.insert(line.words.end(), next, words.end());
  return line;
}

std::vector<Given> read_options(const Dialect& dialect, const std::vector<std::string>& words) {
  std::vector<Given> options;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_option(words[i]))
      throw UserError(Exit::usage, "import", "'" + words[i] + "' belongs to no option of " + dialect.from,
                      i > 0 ? "put quotes around values with spaces; it stands after " + words[i - 1]
                            : "give the whole command, with the name of its script");
    Given given{words[i], ""};
    const size_t equal = given.name.find('=');
    const bool attached = equal != std::string::npos;
    if (attached) given.value = given.name.substr(equal + 1), given.name.resize(equal);
    const auto rule =
        std::find_if(dialect.rules.begin(), dialect.rules.end(), [&](const Rule& r) { return r.option == given.name; });
    const Takes takes = rule == dialect.rules.end() ? Takes::many : rule->takes;
    if (!attached && takes != Takes::nothing) {
      std::vector<std::string> values;
      const bool one = takes == Takes::value || takes == Takes::perhaps;
      while (i + 1 < words.size() && !is_option(words[i + 1]) && !(one && !values.empty())) {
        if (takes == Takes::perhaps && !is_true(words[i + 1]) && !is_false(words[i + 1])) break;
        values.push_back(words[++i]);
      }
      if (takes == Takes::value && values.empty())
        throw UserError(Exit::usage, "import", given.name + " needs a value", "it becomes " + rule->becomes);
      if (values.size() == 1) given.value = values[0];
      if (values.size() > 1)
        for (const std::string& value : values) given.value += value + kListSeparator;
    }
    options.push_back(std::move(given));
  }
  return options;
}

}  // namespace tessera::tools
