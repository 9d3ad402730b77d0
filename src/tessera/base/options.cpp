#include "tessera/base/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <set>

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

/// A number as TOML has it, which knows neither .5 nor 1. nor 0x1p3, and no whole number beyond 64 bits.
std::string toml_number(const std::string& text) {
  if (parses_as_integer(text)) return std::to_string(std::strtoll(text.c_str(), nullptr, 10));
  const size_t dot = text.find('.'), first = text.find_first_of("0123456789");
  const bool plain = text.find_first_not_of("-0123456789.eE+") == text.npos && text[0] != '+' &&
                     (dot == text.npos ? text.find_first_of("eE") != text.npos
                                       : first < dot && dot + 1 < text.size() && std::isdigit(text[dot + 1]) != 0) &&
                     (text[first] != '0' || first + 1 == text.size() || std::isdigit(text[first + 1]) == 0);
  if (plain) return text;
  char shortest[32];
  const double value = std::strtod(text.c_str(), nullptr);
  const std::string number(shortest, std::to_chars(shortest, shortest + sizeof shortest, value).ptr);
  return number.find_first_of(".eni") == number.npos ? number + ".0" : number;
}

bool is_number_of_toml(const std::string& text) { return parses_as_number(text) && toml_number(text) == text; }

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
  const std::string row = list_row(name);
  for (const auto& option : of_lists_)
    if (option.name == row && row != name) return &option;
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
  values[std::string(name)] = value;
}

std::string list_row(std::string_view name) {
  std::string row;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    const bool number = !part.empty() && part.size() <= 4 && part.find_first_not_of("0123456789") == part.npos &&
                        (part == "0" || part[0] != '0');
    row += (at > 0 ? "." : "") + (number && at > 0 ? std::string("N") : std::string(part));
    at = end + 1;
  }
  return row;
}

std::vector<int64_t> list_numbers(const Values& values, const std::string& list) {
  std::set<int64_t> numbers;
  for (auto it = values.lower_bound(list + "."); it != values.end() && it->first.starts_with(list + "."); ++it)
    numbers.insert(to_integer(it->first.substr(list.size() + 1)));
  return {numbers.begin(), numbers.end()};
}

std::string toml_value(const Option& option, const std::string& value) {
  if ((option.kind == Kind::integer && parses_as_integer(value)) ||
      (option.kind == Kind::number && parses_as_number(value)))
    return toml_number(value);
  const bool paths = option.kind == Kind::paths && value.find(kListSeparator) != std::string::npos;
  if (option.kind != Kind::list && !paths) return in_quotes(value);
  std::string shown = "[";
  for (const auto& item : split_list(value))
    shown += (shown.size() > 1 ? ", " : "") + (is_number_of_toml(item) && !paths ? item : in_quotes(item));
  return shown + "]";
}

/// [[data.set]] behind [data].
std::string OptionTable::lists_of(const std::string& table, const Values& values) const {
  std::set<std::string> lists;
  for (const auto& option : of_lists_)
    if (option.name.starts_with(table + ".")) lists.insert(option.name.substr(0, option.name.find(".N.")));
  std::string text;
  for (const std::string& list : lists)
    for (const int64_t number : list_numbers(values, list)) {
      text += "\n[[" + list + "]]\n";
      for (const auto& option : of_lists_) {
        if (!option.name.starts_with(list + ".N.")) continue;
        const std::string key = option.name.substr(list.size() + 3);
        const auto value = values.find(list + "." + std::to_string(number) + "." + key);
        if (value != values.end()) text += key + " = " + toml_value(option, value->second) + "\n";
      }
    }
  return text;
}

std::string OptionTable::to_toml(const Values& values) const {
  std::string text, table;
  for (const auto& option : options_) {
    const std::string& value = values.at(option.name);
    const size_t dot = option.name.rfind('.');
    const std::string group = option.name.substr(0, dot), key = option.name.substr(dot + 1);
    if (value.empty()) continue;
    if (group != table) text += lists_of(table, values) + (text.empty() ? "[" : "\n[") + group + "]\n", table = group;
    text += key + " = " + toml_value(option, value) + "\n";
  }
  return text + lists_of(table, values);
}

}  // namespace tessera
