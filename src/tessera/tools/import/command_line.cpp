#include "tessera/tools/import/command_line.h"

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

struct Word {
  std::string text;
  int line;  ///< of the text, where its command begins; from 1 on
};

/// Throws where several lines of a script start a trainer: options of one would count for the other.
void check_one_command(const std::vector<Word>& words) {
  std::vector<int> lines;
  int line = 0;
  for (const Word& word : words) {
    if (word.line == line || is_variable(word.text)) continue;
    line = word.line;
    if (!launcher_of(word.text).empty()) lines.push_back(line);
  }
  if (lines.size() < 2) return;
  throw UserError(Exit::usage, "import",
                  std::to_string(lines.size()) + " commands start a trainer, in lines " + std::to_string(lines[0]) +
                      " and " + std::to_string(lines[1]) + (lines.size() > 2 ? " and below" : ""),
                  "one command becomes one recipe: put each into a file of its own, or give one with --from");
}

/// The words of the command that starts ranks, where others stand before it; the same words where none do.
std::vector<std::string> launching_words(const std::vector<Word>& words) {
  check_one_command(words);
  const auto starts = [](const Word& word) { return !launcher_of(word.text).empty(); };
  auto launcher = std::find_if(words.begin(), words.end(), starts);
  std::vector<std::string> result;
  if (launcher == words.end()) {
    for (const Word& word : words) result.push_back(word.text);
    return result;
  }
  auto begin = launcher;  // with the variables of the command itself
  while (begin != words.begin() && (begin - 1)->line == launcher->line && is_variable((begin - 1)->text)) --begin;
  Variables variables;
  for (auto word = words.begin(); word != begin; ++word)
    if (is_assignment(word->text))
      variables[word->text.substr(0, word->text.find('='))] = word->text.substr(word->text.find('=') + 1);
  const bool command = begin == words.begin();
  for (auto word = begin; word != words.end(); ++word)
    if (word->text != "$@") result.push_back(command ? word->text : filled_in(word->text, variables));
  return result;
}

std::vector<Word> words_of(const std::string& text) {
  std::vector<Word> words;
  int line = 1, command = 1;  // the line here, and where the command that stands in it begins
  const auto add = [&](const std::string& word) { words.push_back({word, command}); };
  std::string word;
  bool begun = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
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
      if (text[i] == '\n')
        ++line;
      else
        word += text[i], begun = true;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (begun) add(word);
      word.clear(), begun = false;
      if (c == '\n') command = line;
    } else if (c == '#' && !begun) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else {
      word += c, begun = true;
    }
  }
  if (quote)
    throw UserError(Exit::usage, "import", std::string("a quote ") + quote + " does not end in the command line",
                    "put the whole command between quotes of the other kind");
  if (begun) add(word);
  return words;
}

}  // namespace

std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words;
  for (Word& word : words_of(text)) words.push_back(std::move(word.text));
  return words;
}

CommandLine read_command(const std::string& text) {
  std::vector<std::string> words = launching_words(words_of(text));
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
