#include "tessera/tools/import/dialect.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

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

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "tessera/base/toml_text.h"

namespace tessera::tools {

/// The text of PROGRAM.toml, which is compiled in (cmake/embed_tables.cmake); empty where there is none.
std::string_view embedded_table(std::string_view program);

namespace {

/// One row of a table: what it has is taken out, and what is left is a mistake of the table.
class Row {
 public:
  Row(const toml::table& row, std::string where) : row_(row), where_(std::move(where)) {
    names_ = list("name");
    check_internal(!names_.empty(), "import", where_ + ": a row without a name");
    where_ += ", " + names_.front();
  }

  const std::vector<std::string>& names() const { return names_; }
  bool has(std::string_view key) const { return row_.contains(key); }
  std::string text(const std::string& key, const std::string& absent = {}) {
    const toml::node* node = take(key);
    return node ? node->value<std::string>().value() : absent;
  }
  std::vector<std::string> list(const std::string& key) {
    const toml::node* node = take(key);
    std::vector<std::string> items;
    if (node && node->is_array())
      for (const toml::node& item : *node->as_array()) items.push_back(item.value<std::string>().value());
    else if (node)
      items.push_back(node->value<std::string>().value());
    return items;
  }
  std::map<std::string, std::string> map(const std::string& key) {
    std::map<std::string, std::string> items;
    for (const auto& [name, value] : *take(key)->as_table())
      items[std::string(name.str())] = value.value<std::string>().value();
    return items;
  }
  template <class Choice>
  Choice choice(const std::string& key, Choice absent, const std::map<std::string, Choice>& all) {
    const std::string word = text(key);
    if (word.empty()) return absent;
    check_internal(all.contains(word), "import", where_ + ": " + key + " = " + word);
    return all.at(word);
  }
  const std::string& where() const { return where_; }
  void finish() const {
    for (const auto& [key, value] : row_)
      check_internal(taken_.contains(std::string(key.str())), "import",
                     where_ + ": " + std::string(key.str()) + " means nothing in this row");
  }

 private:
  const toml::node* take(const std::string& key) {
    taken_.insert(key);
    return row_.get(key);
  }

  const toml::table& row_;
  std::string where_;
  std::vector<std::string> names_;
  std::set<std::string> taken_;
};

/// "KEY = VALUE" sets, "refused: WHY" refuses.
void apply_outcome(Translator& t, const Given& g, const std::string& outcome, const std::string& because) {
  constexpr std::string_view kRefused = "refused: ", kIs = " = ";
  if (outcome.starts_with(kRefused)) return t.refuse(g.name, outcome.substr(kRefused.size()));
  const size_t is = outcome.find(kIs);
  t.set(outcome.substr(0, is), outcome.substr(is + kIs.size()), {g.name}, because);
}

/// A feature that is said to be off asks for nothing.
Translate unless_off(Translate then) {
  return [then](Translator& t, const Given& g) { is_false(g.value) ? t.imply(g.name, "it is off") : then(t, g); };
}

bool is_one_of(const std::vector<std::string>& accepted, const std::string& value) {
  const std::string word = lower_case(value.empty() ? "true" : value);
  return std::ranges::any_of(accepted, [&](const std::string& a) {
    return lower_case(a) == word || (a == "true" && is_true(word)) || (a == "false" && is_false(word));
  });
}

/// The outcome of a row, with its words for the table; sets what it covers and takes where that is not the usual.
Rule outcome_of(Row& row, const Functions& functions) {
  Rule rule;
  const std::string because = row.text("because");
  if (row.has("sets")) {
    const std::string key = row.text("sets");
    rule.becomes = "`" + key + "`";
    rule.translate = [key, because](Translator& t, const Given& g) { t.set(key, g.value, {g.name}, because); };
  } else if (row.has("switch")) {
    const std::string outcome = row.text("switch");
    rule.becomes = "`" + outcome + "`", rule.takes = Takes::perhaps;
    rule.translate = unless_off([=](Translator& t, const Given& g) { apply_outcome(t, g, outcome, because); });
  } else if (row.has("values")) {
    const auto values = row.map("values");
    const std::string otherwise = row.text("otherwise");
    for (const auto& [value, outcome] : values)
      if (!outcome.starts_with("refused"))
        rule.becomes += (rule.becomes.empty() ? "" : ", ") + value + " `" + outcome + "`";
    rule.becomes += "; else refused";
    rule.translate = [=](Translator& t, const Given& g) {
      const auto found = values.find(g.value);
      apply_outcome(t, g, found == values.end() ? otherwise : found->second, because);
    };
  } else if (row.has("implied")) {
    const std::string why = rule.becomes = row.text("implied");
    rule.covers = Covers::both;
    rule.translate = [why](Translator& t, const Given& g) { t.imply(g.name, why); };
  } else if (row.has("refused")) {
    const std::string why = row.text("refused");
    rule.becomes = "refused: " + why, rule.covers = Covers::both;
    rule.translate = unless_off([why](Translator& t, const Given& g) { t.refuse(g.name, why); });
  } else if (row.has("warned")) {
    const std::string why = row.text("warned");
    rule.becomes = "a warning: " + why, rule.covers = Covers::both;
    rule.translate = unless_off([why](Translator& t, const Given& g) { t.warn(g.name, why); });
  } else if (row.has("only")) {
    const std::vector<std::string> accepted = row.list("only");
    const std::string why = row.text("why"), otherwise = row.text("otherwise", why);
    for (const std::string& word : accepted) rule.becomes += (rule.becomes.empty() ? "" : ", ") + word;
    rule.becomes += ": " + why + "; else refused: " + otherwise;
    rule.translate = [=](Translator& t, const Given& g) {
      is_one_of(accepted, g.value) ? t.imply(g.name, why) : t.refuse(g.name, otherwise);
    };
  } else if (row.has("by")) {
    const std::string name = row.text("by"), key = row.text("key");
    check_internal(functions.contains(name), "import", row.where() + ": there is no function " + name);
    if (!key.empty()) rule.becomes = "`" + key + "`";
    rule.translate = [key, by = functions.at(name)](Translator& t, const Given& g) { by(t, g, key); };
  } else {
    rule.becomes = row.text("joined");
    check_internal(!rule.becomes.empty(), "import", row.where() + ": the row says nothing");
    rule.translate = [](Translator&, const Given&) {};
  }
  return rule;
}

/// Whether "OPTION" is given and on, or "OPTION = VALUE" says what is given.
bool holds(const Translator& t, const std::string& condition) {
  const size_t is = condition.find(" = ");
  if (is == std::string::npos) return t.flag(condition);
  return lower_case(t.value(condition.substr(0, is))) == condition.substr(is + 3);
}

Rule rule_of(Row& row, const Functions& functions) {
  Rule rule = outcome_of(row, functions);
  rule.takes = row.choice(
      "takes", rule.takes,
      {{"value", Takes::value}, {"nothing", Takes::nothing}, {"perhaps", Takes::perhaps}, {"many", Takes::many}});
  rule.covers =
      row.choice("covers", rule.covers, {{"value", Covers::value}, {"table", Covers::table}, {"both", Covers::both}});
  rule.becomes = row.text("becomes", rule.becomes);
  if (row.has("none"))
    rule.translate = [none = row.text("none"), then = rule.translate](Translator& t, const Given& g) {
      const std::string word = lower_case(g.value);
      word.empty() || word == "null" || word == "none" ? t.imply(g.name, none) : then(t, g);
    };
  if (row.has("with"))
    rule.translate = [with = row.text("with"), without = row.text("without"), then = rule.translate](
                         Translator& t, const Given& g) { holds(t, with) ? then(t, g) : t.imply(g.name, without); };
  row.finish();
  return rule;
}

}  // namespace

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string number_text(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

bool is_true(const std::string& text) {
  const std::string word = lower_case(text);
  return word == "true" || word == "1" || word == "yes" || word == "on";
}
bool is_false(const std::string& text) {
  const std::string word = lower_case(text);
  return word == "false" || word == "0" || word == "no" || word == "off" || word == "none" || word == "null";
}

std::string size_value(const std::string& text) {
  const size_t cross = text.find_first_of("*xX");
  const auto whole = [](const std::string& part) {
    return !part.empty() && part.size() < 6 && part.find_first_not_of("0123456789") == std::string::npos;
  };
  if (cross == std::string::npos || !whole(text.substr(0, cross)) || !whole(text.substr(cross + 1))) return {};
  return text.substr(cross + 1) + "," + text.substr(0, cross);
}

std::string Given::shown() const {
  std::string text;
  if (value.find(kListSeparator) == std::string::npos)
    text = value;
  else
    for (const std::string& item : split_list(value)) text += (text.empty() ? "" : ", ") + item;
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  const std::string& written = typed.empty() ? name : typed;
  if (written.starts_with("-")) return text.empty() ? written : written + " " + text;
  return written + " = " + text;
}

Dialect read_dialect(const std::string& program, const std::string& table, std::function<void(Translator&)> together,
                     const Functions& functions) {
  toml::table file;
  try {
    file = parse_toml(embedded_table(program), program + ".toml");
  } catch (const toml::parse_error& error) {
    throw InternalError("import", program + ".toml, line " + std::to_string(error.source().begin.line) + ": " +
                                      std::string(error.description()));
  }
  const std::string where = program + ".toml, " + table;
  const toml::table* found = file[table].as_table();
  check_internal(found && (*found)["options"].is_array(), "import", where + ": there are no options");
  Dialect dialect;
  dialect.name = (*found)["title"].value_or(std::string());
  dialect.from = (*found)["from"].value_or(std::string());
  dialect.autos = (*found)["auto_is_left_to_the_recipe"].value_or(false);
  dialect.together = std::move(together);
  for (const toml::node& node : *(*found)["options"].as_array()) {
    Row row(*node.as_table(), where);
    Rule rule = rule_of(row, functions);
    for (const std::string& name : row.names()) {
      rule.option = name;
      dialect.rules.push_back(rule);
    }
  }
  if (const toml::array* defaults = (*found)["defaults"].as_array())
    for (const toml::node& node : *defaults) {
      const toml::table& row = *node.as_table();
      dialect.defaults.push_back({row["key"].value_or(std::string()), row["value"].value_or(std::string()),
                                  row["why"].value_or(std::string())});
    }
  return dialect;
}

Translator::Translator(const Dialect& dialect, std::vector<Given> given, ImportContext context)
    : dialect_(dialect), given_(std::move(given)), context_(std::move(context)) {
  result_.from = dialect.from;
  result_.ranks = context_.ranks;
}

const Given* Translator::find(const std::string& option) const {
  for (const Given& g : given_)
    if (g.name == option) return &g;
  return nullptr;
}
const Given& Translator::known(const std::string& option) const {
  const Given* given = find(option);
  check_internal(given != nullptr, "import", "a translation answers " + option + ", which was not given");
  return *given;
}
bool Translator::is_answered(const std::string& option) const {
  return std::find(answered_.begin(), answered_.end(), option) != answered_.end();
}
std::string Translator::value(const std::string& option, const std::string& absent) const {
  const Given* given = find(option);
  return given ? given->value : absent;
}
int64_t Translator::integer(const std::string& option, int64_t absent) const {
  const Given* given = find(option);
  if (!given) return absent;
  int64_t number = 0;
  const char* end = given->value.data() + given->value.size();
  const auto [stop, error] = std::from_chars(given->value.data(), end, number);
  if (error != std::errc() || stop != end)
    throw UserError(Exit::usage, "import", given->shown() + ": expected a whole number",
                    "correct it in " + result_.from);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // products of two of them are numbers too
  if (number < -kMost || number > kMost)
    throw UserError(Exit::usage, "import", given->shown() + ": expected at most " + std::to_string(kMost),
                    "correct it in " + result_.from);
  return number;
}
double Translator::number(const std::string& option, double absent) const {
  const Given* given = find(option);
  if (!given) return absent;
  char* end = nullptr;
  const double number = std::strtod(given->value.c_str(), &end);
  if (given->value.empty() || *end != 0)
    throw UserError(Exit::usage, "import", given->shown() + ": expected a number", "correct it in " + result_.from);
  return number;
}
bool Translator::flag(const std::string& option) const {
  const Given* given = find(option);
  return given && !is_false(given->value);
}

void Translator::set(const std::string& key, const std::string& value, const std::vector<std::string>& options,
                     const std::string& because) {
  std::string words;
  for (const std::string& option : options) {
    words += (words.empty() ? "" : " ") + known(option).shown();
    answered(option);
  }
  // What a recipe refuses is refused here, with its reason.
  const std::string& first = options.front();
  if (!knows(key)) {
    result_.refused.push_back({words, "this version has no key " + key});
    return;
  }
  try {
    Values scratch = recipe::recipe_table().defaults();
    recipe::recipe_table().set(scratch, key, value, "recipe");
  } catch (const UserError& error) {
    throw UserError(Exit::usage, "import", known(first).shown() + ": " + error.what(), "correct it");
  }
  result_.set(key, value, because.empty() ? words : words + " (" + because + ")");
}

void Translator::imply(const std::string& option, const std::string& why) {
  result_.implied.push_back({known(option).shown(), why});
  answered(option);
}
void Translator::refuse(const std::string& option, const std::string& why) {
  result_.refused.push_back({known(option).shown(), why});
  answered(option);
}
void Translator::warn(const std::string& option, const std::string& why) {
  result_.warned.push_back({known(option).shown(), why});
  answered(option);
}
void Translator::unknown(const Given& given) {
  std::vector<std::string> names;
  for (const Rule& rule : dialect_.rules) names.push_back(rule.option);
  result_.mistakes.push_back({given.shown(), dialect_.from + " has no option " +
                                                 (given.typed.empty() ? given.name : given.typed) + "; did you mean " +
                                                 nearest(given.name, names).front() + "?"});
  answered(given.name);
}
void Translator::assume(const std::string& key, const std::string& value, const std::string& why) {
  const bool listed = result_.find("data.buckets") && (key == "data.frames" || key == "data.size");  // all shapes are
  if (knows(key) && !listed) result_.set(key, value, why, /*assumed=*/true);
}

std::optional<int> Translator::ranks() const { return result_.ranks > 0 ? std::optional(result_.ranks) : std::nullopt; }
void Translator::set_ranks(int ranks, const std::string& option) {
  if (context_.ranks > 0) {  // what really runs counts
    imply(option, std::to_string(context_.ranks) + " ranks run");
    return;
  }
  result_.ranks = ranks;
  imply(option, "ranks are started, not set: tessera launch -n " + std::to_string(ranks) + " train RECIPE");
}
std::optional<int64_t> Translator::dp_size() const {
  if (!ranks()) return std::nullopt;
  int64_t used = 1;
  for (const char* axis : {"mesh.pp", "mesh.cp", "mesh.sp", "mesh.tp"})
    if (const auto* setting = result_.find(axis))
      used = checked_product({used, std::max<int64_t>(1, to_integer(setting->value))}, "import: the mesh");
  if (*ranks() % used != 0)
    throw UserError(Exit::usage, "import",
                    std::to_string(*ranks()) + " ranks do not divide by the " + std::to_string(used) +
                        " that one sample is spread over",
                    "start a multiple of " + std::to_string(used));
  return *ranks() / used;
}
void Translator::set_batch(int64_t per_rank, const std::vector<std::string>& options, const std::string& how) {
  if (per_rank < 1)
    throw UserError(Exit::usage, "import", known(options.front()).shown() + ": expected at least 1", "correct it");
  const auto dp = dp_size();
  const int64_t batch = checked_product({per_rank, dp.value_or(1)}, "import: the global batch");
  const std::string because =
      how +
      (dp ? " x dp_size " + std::to_string(*dp) : "; a data-parallel rank, for one of them: give --ranks N for more") +
      "; micro-batches follow from memory";
  set("train.global_batch", std::to_string(batch), options, because);
}

Translation Translator::finish() {
  for (const Given& g : given_) {
    auto rule =
        std::find_if(dialect_.rules.begin(), dialect_.rules.end(), [&](const Rule& r) { return r.option == g.name; });
    if (rule == dialect_.rules.end())
      rule = std::find_if(dialect_.rules.begin(), dialect_.rules.end(), [&](const Rule& r) {
        return r.covers != Covers::value && g.name.starts_with(r.option + ".");
      });
    if (rule == dialect_.rules.end()) {
      unknown(g);
      continue;
    }
    if (rule->covers == Covers::table && g.name == rule->option)
      throw UserError(Exit::usage, "import", g.shown() + ": expected a table of values", "correct " + dialect_.from);
    if (dialect_.autos && g.value == "auto")
      imply(g.name, "left to the recipe");
    else
      rule->translate(*this, g);
  }
  if (dialect_.together) dialect_.together(*this);
  for (const Dialect::Default& usual : dialect_.defaults) assume(usual.key, usual.value, usual.why);
  for (const Given& g : given_)
    check_internal(is_answered(g.name), "import", g.name + " of " + dialect_.from + " was dropped");
  return std::move(result_);
}

Translation translate(const Dialect& dialect, std::vector<Given> given, const ImportContext& context) {
  // of an option that is given twice the last one counts, as for argparse
  std::vector<Given> last;
  for (Given& g : given) {
    std::erase_if(last, [&](const Given& other) { return other.name == g.name; });
    last.push_back(std::move(g));
  }
  return Translator(dialect, std::move(last), context).finish();
}

}  // namespace tessera::tools
