#include "tessera/tools/import/command_line.h"

#include <algorithm>

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
  for (const char* known : {"accelerate", "torchrun", "deepspeed"})
    if (name == known) return name;
  return name.starts_with("python") ? "python" : "";
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
  std::vector<std::string> words = shell_words(text);
  CommandLine line;
  auto next = words.begin();
  while (next != words.end() && is_variable(*next)) line.variables.push_back(*next++);
  const auto script =
      std::find_if(next, words.end(), [](const std::string& word) { return word.ends_with(".py") && word != ".py"; });
  if (script != words.end()) {
    line.script = *script;
    if (next != script) line.launcher = launcher_of(*next);
    if (next != script && line.launcher.empty())
      throw UserError(Exit::usage, "import", "'" + *next + "' before " + *script + " is no launcher",
                      "accelerate launch, torchrun, deepspeed and python are read");
    for (; next != script; ++next)  // python -m torch.distributed.run is torchrun
      if (*next == "torch.distributed.run" || *next == "torch.distributed.launch")
        line.launcher = "torchrun";
      else if (*next != "launch" && *next != "-m" && launcher_of(*next).empty())
        line.launcher_words.push_back(*next);
    next = script + 1;
  }
  line.words.assign(next, words.end());
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
