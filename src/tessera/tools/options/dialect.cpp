#include "tessera/tools/options/dialect.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/base/checked.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::tools {

namespace {

std::string joined_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
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

Rule sets(std::string option, std::string key) {
  return {option, "`" + key + "`", Takes::value,
          [key](Translator& t, const Given& g) { t.set(key, g.value, {g.name}); }};
}
Rule switches(std::string option, std::string key, std::string value) {
  return {option, "`" + key + " = " + value + "`", Takes::perhaps, [key, value](Translator& t, const Given& g) {
            if (is_false(g.value))
              t.imply(g.name, "it is off");
            else
              t.set(key, value, {g.name});
          }};
}
Rule implied(std::string option, std::string why, Takes takes) {
  return {option, why, takes, [why](Translator& t, const Given& g) { t.imply(g.name, why); }, Covers::both};
}
Rule refused(std::string option, std::string why, Takes takes) {
  return {option, "refused: " + why, takes,
          [why](Translator& t, const Given& g) {
            // a feature that is said to be off asks for nothing
            if (is_false(g.value))
              t.imply(g.name, "it is off");
            else
              t.refuse(g.name, why);
          },
          Covers::both};
}
Rule warned(std::string option, std::string why, Takes takes) {
  return {option, "a warning: " + why, takes,
          [why](Translator& t, const Given& g) {
            if (is_false(g.value))
              t.imply(g.name, "it is off");
            else
              t.warn(g.name, why);
          },
          Covers::both};
}
Rule only(std::string option, std::vector<std::string> accepted, std::string why, std::string why_not, Takes takes) {
  const std::string words = joined_words(accepted);
  return {option, words + ": " + why + "; else refused: " + why_not, takes,
          [accepted, why, why_not](Translator& t, const Given& g) {
            const std::string word = lower_case(g.value.empty() ? "true" : g.value);
            const bool fits = std::any_of(accepted.begin(), accepted.end(), [&](const std::string& a) {
              return lower_case(a) == word || (a == "true" && is_true(word)) || (a == "false" && is_false(word));
            });
            if (fits)
              t.imply(g.name, why);
            else
              t.refuse(g.name, why_not);
          }};
}
Rule by(std::string option, std::string becomes, Translate translate, Takes takes) {
  return {std::move(option), std::move(becomes), takes, std::move(translate)};
}
Rule joined(std::string option, std::string becomes, Takes takes) {
  return {std::move(option), std::move(becomes), takes, [](Translator&, const Given&) {}};
}
Rule of_table(Rule rule, Covers covers) {
  rule.covers = covers;
  return rule;
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
void Translator::assume(const std::string& key, const std::string& value, const std::string& why) {
  if (knows(key)) result_.set(key, value, why, /*assumed=*/true);
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
  std::vector<std::string> names;
  for (const Rule& rule : dialect_.rules) names.push_back(rule.option);
  for (const Given& g : given_) {
    auto rule =
        std::find_if(dialect_.rules.begin(), dialect_.rules.end(), [&](const Rule& r) { return r.option == g.name; });
    if (rule == dialect_.rules.end())
      rule = std::find_if(dialect_.rules.begin(), dialect_.rules.end(), [&](const Rule& r) {
        return r.covers != Covers::value && g.name.starts_with(r.option + ".");
      });
    if (rule == dialect_.rules.end())
      throw UserError(Exit::usage, "import", dialect_.from + " has no option " + (g.typed.empty() ? g.name : g.typed),
                      "did you mean " + nearest(g.name, names).front() + "? tessera import --table lists all");
    if (rule->covers == Covers::table && g.name == rule->option)
      throw UserError(Exit::usage, "import", g.shown() + ": expected a table of values", "correct " + dialect_.from);
    if (dialect_.autos && g.value == "auto")
      imply(g.name, "left to the recipe");
    else
      rule->translate(*this, g);
  }
  if (dialect_.together) dialect_.together(*this);
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
