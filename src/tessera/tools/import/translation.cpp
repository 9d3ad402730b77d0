#include "tessera/tools/import/translation.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::tools {

namespace {

std::string toml_line(const OptionTable& table, const Translation::Setting& setting) {
  const std::string key = setting.key.substr(setting.key.rfind('.') + 1);
  return key + " = " + (setting.value.empty() ? "\"\"" : toml_value(*table.find(setting.key), setting.value));
}

std::string shown_value(const std::string& value) {
  std::string text;
  for (const std::string& item : split_list(value)) text += (text.empty() ? "" : ",") + item;
  return value.find(kListSeparator) == std::string::npos ? value : text;
}

/// A comment stays one: what was given may have line breaks.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return printable(text);
}

std::string padded_to(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

}  // namespace

void Translation::set(const std::string& key, const std::string& value, const std::string& because, bool assumed) {
  const Setting* other = find(key);
  if (other && assumed) return;
  if (other && other->assumed) {
    std::erase_if(settings, [&](const Setting& s) { return s.key == key; });
    other = nullptr;
  }
  if (!other) {
    settings.push_back({key, value, because, assumed});
  } else if (other->value != value) {
    mistakes.push_back({because, "means " + key + " = " + shown_value(value) + ", and " + other->because + " means " +
                                     shown_value(other->value) + ": leave one of them away"});
  }
}

const Translation::Setting* Translation::find(const std::string& key) const {
  for (const Setting& setting : settings)
    if (setting.key == key) return &setting;
  return nullptr;
}

void Translation::merge(const Translation& other) {
  for (const Setting& setting : other.settings) set(setting.key, setting.value, setting.because, setting.assumed);
  implied.insert(implied.end(), other.implied.begin(), other.implied.end());
  warned.insert(warned.end(), other.warned.begin(), other.warned.end());
  refused.insert(refused.end(), other.refused.begin(), other.refused.end());
  mistakes.insert(mistakes.end(), other.mistakes.begin(), other.mistakes.end());
  if (ranks == 0) ranks = other.ranks;
  accumulation = std::max(accumulation, other.accumulation);
}

Translation of_data_sets(const std::vector<Translation>& sets) {
  // One that has nothing for which [data] lacks a key needs no table.
  const std::string alone = "data.set.0.", table = "data.";
  const auto is_of_set = [&](const Translation::Setting& setting) { return setting.key.starts_with(alone); };
  if (sets.size() == 1 && std::ranges::none_of(sets.front().settings, is_of_set)) return sets.front();
  Translation all;
  all.from = sets.front().from;
  const auto said_by_all = [&](const Translation::Setting& setting) {
    return std::ranges::all_of(sets, [&](const Translation& set) {
      const Translation::Setting* other = set.find(setting.key);
      return other && other->value == setting.value;
    });
  };
  for (size_t s = 0; s < sets.size(); ++s) {
    Translation own = sets[s];
    for (Translation::Setting& setting : own.settings) {
      const bool own_key = is_of_set(setting);
      const std::string key = setting.key.substr(std::min(own_key ? alone.size() : table.size(), setting.key.size()));
      const std::string of_set = "data.set." + std::to_string(s) + "." + key;
      const bool always = own_key || key == "path" || key == "metadata" || key == "repeats";
      if (setting.key.starts_with(table) && recipe::recipe_table().find(of_set) && (always || !said_by_all(setting)))
        setting.key = of_set;
    }
    std::erase_if(own.settings, [&](const Translation::Setting& setting) {
      const Translation::Setting* first = all.find(setting.key);
      const bool other_cache = setting.key == "data.cache" && first && first->value != setting.value;
      if (other_cache) own.implied.push_back({setting.because, "one cache holds the samples of all sets"});
      return other_cache;
    });
    for (auto list : {&Translation::implied, &Translation::warned, &Translation::refused, &Translation::mistakes})
      std::erase_if(own.*list, [&](const Translation::Remark& remark) {  // what is said of all sets, once
        return std::ranges::any_of(all.*list, [&](const Translation::Remark& one) {
          return one.option == remark.option && one.why == remark.why;
        });
      });
    all.merge(own);
  }
  return all;
}

recipe::Overrides Translation::overrides() const {
  recipe::Overrides result;
  for (const Setting& setting : settings) result.emplace_back(setting.key, setting.value);
  return result;
}

std::string Translation::to_toml() const {
  const OptionTable& table = recipe::recipe_table();
  std::string text = "# Made of " + one_line(from) + " by tessera import. Each key names the option it comes from.\n";
  const auto remarks = [&](const char* title, const std::vector<Remark>& list) {
    if (list.empty()) return;
    text += std::string("#\n# ") + title + "\n";
    for (const Remark& remark : list) text += "#   " + one_line(remark.option + ": " + remark.why) + "\n";
  };
  remarks("To be mended, and not in this recipe:", mistakes);
  remarks("Refused, and not in this recipe:", refused);
  remarks("Not there, though training goes on without:", warned);
  remarks("Without a key of its own:", implied);
  const auto line = [&](const Setting& setting) {
    return padded_to(toml_line(table, setting), 31) + " # " + one_line(setting.because) + "\n";
  };
  std::string group;
  for (const Option& option : table.options()) {
    const Setting* setting = find(option.name);
    if (!setting) continue;
    const std::string of = option.name.substr(0, option.name.rfind('.'));
    if (of != group) text += "\n[" + of + "]\n", group = of;
    text += line(*setting);
  }
  Values values;
  for (const Setting& setting : settings) values[setting.key] = setting.value;
  for (const int64_t number : list_numbers(values, "data.set")) {
    text += "\n[[data.set]]\n";
    for (const Setting& setting : settings)
      if (setting.key.starts_with("data.set." + std::to_string(number) + ".")) text += line(setting);
  }
  return text;
}

std::vector<std::string> Translation::lines() const {
  std::vector<std::string> lines;
  for (const Setting& s : settings) lines.push_back(s.because + ": " + s.key + " = " + shown_value(s.value));
  for (const Remark& r : implied) lines.push_back(r.option + ": " + r.why);
  for (const Remark& r : refused) lines.push_back(r.option + ": refused, " + r.why);
  return lines;
}

void Translation::refuse_to(const std::string& act) const {
  if (refused.empty() && mistakes.empty()) return;
  std::string list;
  for (const std::vector<Remark>& remarks : {mistakes, refused})
    for (const Remark& remark : remarks) list += "\n  " + remark.option + ": " + remark.why;
  const size_t count = refused.size() + mistakes.size();
  throw UserError(
      Exit::usage, act,
      std::to_string(count) + (count == 1 ? " option" : " options") + " of " + from + " cannot be converted:" + list,
      "\nremove them, or see tessera import --table for the options that are supported");
}

}  // namespace tessera::tools
