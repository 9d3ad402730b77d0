#include "tessera/base/options.h"

#include <charconv>
#include <cstdlib>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"

namespace tessera {

namespace {

bool parses_as_integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parses_as_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t begin = part.find_first_not_of(' ');
    if (begin != std::string_view::npos) parts.emplace_back(part.substr(begin, part.find_last_not_of(' ') - begin + 1));
  }
  return parts;
}

std::string_view expected(Kind kind) {
  switch (kind) {
    case Kind::integer:
      return "a whole number";
    case Kind::number:
      return "a number";
    case Kind::bytes:
      return "a size such as 24GiB";
    default:
      return "a text";
  }
}

}  // namespace

std::vector<std::string> split_list(std::string_view text) {
  return split(text, text.find(kListSeparator) == std::string_view::npos ? ',' : kListSeparator);
}
int64_t to_integer(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }
double to_number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

const Option* OptionTable::find(std::string_view name) const {
  for (const auto& option : options_)
    if (option.name == name) return &option;
  return nullptr;
}

const Option& OptionTable::at(std::string_view name, std::string_view where) const {
  if (const Option* option = find(name)) return *option;
  std::vector<std::string> known;
  for (const auto& option : options_) known.push_back(option.name);
  throw UserError(Exit::usage, where, "unknown key '" + std::string(name) + "'",
                  "did you mean '" + nearest(name, known).front() + "'?");
}

Values OptionTable::defaults() const {
  Values values;
  for (const auto& option : options_) values[option.name] = option.fallback;
  return values;
}

void OptionTable::set(Values& values, std::string_view name, const std::string& value, std::string_view where) const {
  const Option& option = at(name, where);
  const auto fail = [&](const std::string& wanted) {
    throw UserError(Exit::usage, where, option.name + " = '" + value + "': expected " + wanted,
                    option.name + ": " + option.help);
  };
  if (value != option.fallback) {
    if (option.kind == Kind::integer && !parses_as_integer(value)) fail(std::string(expected(option.kind)));
    if (option.kind == Kind::number && !parses_as_number(value)) fail(std::string(expected(option.kind)));
    if (option.kind == Kind::bytes) parse_bytes(value, option.name);
    if (option.kind == Kind::choice) {
      const auto choices = split(option.choices, '|');
      bool known = false;
      for (const auto& choice : choices) known = known || choice == value;
      if (!known) fail("one of " + option.choices + " (did you mean '" + nearest(value, choices).front() + "'?)");
    }
  }
  values[option.name] = value;
}

std::string OptionTable::to_toml(const Values& values) const {
  std::string text, table;
  for (const auto& option : options_) {
    const std::string& value = values.at(option.name);
    const size_t dot = option.name.rfind('.');
    const std::string group = option.name.substr(0, dot), key = option.name.substr(dot + 1);
    if (value.empty()) continue;
    if (group != table) text += (text.empty() ? "[" : "\n[") + group + "]\n", table = group;
    std::string shown = in_quotes(value);
    if ((option.kind == Kind::integer && parses_as_integer(value)) ||
        (option.kind == Kind::number && parses_as_number(value)))
      shown = value;
    const bool paths = option.kind == Kind::paths && value.find(kListSeparator) != std::string::npos;
    if (option.kind == Kind::list || paths) {
      shown = "[";
      for (const auto& item : split_list(value))
        shown += (shown.size() > 1 ? ", " : "") + (parses_as_number(item) && !paths ? item : in_quotes(item));
      shown += "]";
    }
    text += key + " = " + shown + "\n";
  }
  return text;
}

}  // namespace tessera
