// The part of YAML that accelerate writes: maps by indentation, scalars, lists of scalars.
#include <optional>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"

namespace tessera::tools {

namespace {

/// Without the comment at its end, which begins after a space outside of quotes.
std::string yaml_line(const std::string& line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote)
      quote = c == quote ? 0 : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    else if (c == '#' && (i == 0 || line[i - 1] == ' '))
      return line.substr(0, i);
  }
  return line;
}

std::string yaml_trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string yaml_unquoted(const std::string& text) {
  const bool quotes = text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
  return quotes ? text.substr(1, text.size() - 2) : text;
}

/// A scalar, or [a, b] as a list; nothing for what is neither.
std::optional<std::string> yaml_value(const std::string& text) {
  if (text == "{}") return "";
  if (text.empty() || text[0] == '{' || text[0] == '|' || text[0] == '>' || text[0] == '&' || text[0] == '*' ||
      text[0] == '!')
    return std::nullopt;
  if (text[0] != '[') return yaml_unquoted(text);
  if (text.back() != ']') return std::nullopt;
  std::string list;
  for (const std::string& item : split_list(text.substr(1, text.size() - 2)))
    list += yaml_unquoted(item) + kListSeparator;
  return list;
}

}  // namespace

std::vector<Given> read_yaml(const std::string& text, const std::string& file) {
  struct Level {
    size_t indent;
    std::string prefix;
  };
  std::vector<Given> out;
  std::vector<Level> levels = {{0, ""}};
  std::optional<std::string> open;  // a key without a value yet: of a map or a list below it
  int number = 0;
  for (size_t at = 0; at <= text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = yaml_line(text.substr(at, end - at)), words = yaml_trimmed(line);
    at = end + 1;
    if (words.empty() || words == "---" || words == "...") continue;
    const auto fail = [&](const std::string& what) {
      throw UserError(Exit::usage, "import", file + ", line " + std::to_string(number + 1) + ": " + what,
                      "write it as accelerate config does: `key: value`, maps indented by spaces");
    };
    const size_t indent = line.find_first_not_of(' ');
    if (line[indent] == '\t') fail("a tab in the indentation");
    if (words.starts_with("- ") && open) {
      const auto item = yaml_value(yaml_trimmed(words.substr(2)));
      if (!item || item->find(kListSeparator) != std::string::npos) fail("a list of more than texts and numbers");
      if (out.empty() || out.back().name != *open) out.push_back({*open, ""});
      out.back().value += *item + kListSeparator;
      continue;
    }
    if (open && indent > levels.back().indent) levels.push_back({indent, *open + "."});
    while (levels.size() > 1 && indent < levels.back().indent) levels.pop_back();
    if (indent != levels.back().indent) fail("an indentation that no line above has");
    open.reset();
    const size_t colon = words.find(": ");
    const bool ends = words.back() == ':';
    if (colon == std::string::npos && !ends) fail("expected `key: value`");
    const std::string key = yaml_unquoted(words.substr(0, colon == std::string::npos ? words.size() - 1 : colon));
    const std::string rest = colon == std::string::npos ? "" : yaml_trimmed(words.substr(colon + 1));
    if (rest.empty()) {
      open = levels.back().prefix + key;
      continue;
    }
    const auto value = yaml_value(rest);
    if (!value) fail("'" + rest.substr(0, 20) + "' is YAML that is not read here");
    if (!value->empty()) out.push_back({levels.back().prefix + key, *value});
  }
  return out;
}

}  // namespace tessera::tools
