#include "tessera/plan/unit_keys.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/plan/plan_rows.h"
#include "tessera/plan/toml_value.h"

namespace tessera::plan {

Numbered numbered(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  Numbered result{std::string(name), -1};
  // "07" stays a plain name because it could not be written back from its number.
  if (digits == 0 || digits == name.size() || (name[digits] == '0' && name.size() > digits + 1)) return result;
  int64_t index = 0;
  if (std::from_chars(name.data() + digits, name.data() + name.size(), index).ec != std::errc()) return result;
  return {std::string(name.substr(0, digits)), index};
}

std::vector<size_t> matching(std::string_view pattern, const std::vector<std::string>& names) {
  std::vector<size_t> found;
  for (size_t u = 0; u < names.size(); ++u)
    if (names[u] == pattern) return {u};
  if (pattern.ends_with('*')) {
    for (size_t u = 0; u < names.size(); ++u)
      if (names[u].starts_with(pattern.substr(0, pattern.size() - 1))) found.push_back(u);
    return found;
  }
  const size_t dash = pattern.rfind('-');
  if (dash == std::string_view::npos) return found;
  const Numbered first = numbered(pattern.substr(0, dash));
  int64_t last = -1;
  std::from_chars(pattern.data() + dash + 1, pattern.data() + pattern.size(), last);
  for (size_t u = 0; u < names.size(); ++u) {
    const Numbered name = numbered(names[u]);
    if (first.index >= 0 && name.stem == first.stem && name.index >= first.index && name.index <= last)
      found.push_back(u);
  }
  // every unit of a range must exist, else the range is a typing error
  const auto covered = static_cast<int64_t>(found.size());
  return covered > 0 && covered == last - first.index + 1 ? found : std::vector<size_t>{};
}

namespace {

const std::string kFile = "recipe";
constexpr std::string_view kSites = "sites.";

std::string prefix_of(const std::string& match) { return "plan.units \"" + match + "\": "; }

/// The keys as a [[units]] table of a plan file.
toml::table table_of(const UnitKeys& given) {
  toml::table table;
  for (const auto& [key, value] : given.keys) {
    if (key.starts_with(kSites)) {
      if (!table.contains("sites")) table.insert("sites", toml::table{});
      table["sites"].as_table()->insert_or_assign(key.substr(kSites.size()), value);
    } else if (value == "true" || value == "false") {
      table.insert_or_assign(key, value == "true");
    } else {
      table.insert_or_assign(key, value);
    }
  }
  return table;
}

/// Sets the keys of the table. Updates on the host need their buffers there; an activation policy comes with its sites.
void set_keys(UnitPlan& unit, const toml::table& table, const std::string& prefix) {
  if (table.contains("activations")) unit.sites.clear();
  for (const Row<UnitPlan>& row : unit_rows())
    if (const TomlValue value(table, row.key, prefix, kFile); value) row.read(unit, value);
  if (unit.update_on != Tier::host || !table.contains("update_on")) return;
  for (const auto& [key, part] : {std::pair("parameters", &UnitPlan::parameters),
                                  {"gradients", &UnitPlan::gradients},
                                  {"states", &UnitPlan::states}})
    if (!table.contains(key)) unit.*part = Tier::host;
}

/// "stem, blocks.0-29, head".
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t first = 0; first < names.size();) {
    const Numbered start = numbered(names[first]);
    size_t last = first;
    while (start.index >= 0 && last + 1 < names.size() &&
           names[last + 1] == start.stem + std::to_string(start.index + static_cast<int64_t>(last + 1 - first)))
      ++last;
    text += (text.empty() ? "" : ", ") + names[first];
    if (last > first) text += "-" + std::to_string(numbered(names[last]).index);
    first = last + 1;
  }
  return text;
}

}  // namespace

UnitKeys unit_keys_of(std::string_view text, const std::string& where) {
  UnitKeys given;
  std::istringstream words{std::string(text)};
  words >> given.match;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
      throw UserError(Exit::usage, where, "\"" + std::string(text) + "\": '" + word + "' is not KEY=VALUE",
                      "for example \"blocks.* strategy=shard_grad_op\"");
    given.keys.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  if (given.keys.empty())
    throw UserError(Exit::usage, where, "\"" + std::string(text) + "\" sets nothing",
                    "name units and what they have: match = \"blocks.*\" with strategy = \"shard_grad_op\"");
  const toml::table table = table_of(given);
  std::vector<std::string> known;
  for (const Row<UnitPlan>& row : unit_rows()) known.emplace_back(row.key);
  check_known_keys(table, prefix_of(given.match), kFile, known);
  if (table.contains("sites") && !table.contains("activations"))
    throw UserError(Exit::usage, where, "\"" + given.match + "\" has sites without activations",
                    "sites are exceptions of a policy: set activations too, for example to \"recompute\"");
  UnitPlan unit;
  set_keys(unit, table, prefix_of(given.match));
  Plan plan;
  plan.units.push_back(std::move(unit));
  plan.check_updates(kFile + ": " + prefix_of(given.match));
  return given;
}

struct UnitsByHand::Table {
  toml::table keys;
  std::string prefix;
  int expert = -1;  // -1: all
  std::vector<size_t> units;

  void apply(std::vector<UnitPlan>& plans) const {
    for (const size_t u : units) set_keys(plans[u], keys, prefix);
  }
};

UnitsByHand::UnitsByHand(const std::vector<UnitKeys>& given, const ModelSpec& model,
                         const std::vector<std::string>& experts)
    : experts_(static_cast<int>(experts.size())) {
  std::vector<std::string> units;
  for (const UnitSpec& unit : model.units) units.push_back(unit.name);
  for (const UnitKeys& one : given) {
    auto table = std::make_unique<Table>(Table{table_of(one), prefix_of(one.match), -1, {}});
    std::string pattern = one.match;
    for (int e = 0; e < experts_; ++e)
      if (pattern.starts_with(experts[static_cast<size_t>(e)] + "."))
        table->expert = e, pattern = one.match.substr(experts[static_cast<size_t>(e)].size() + 1);
    table->units = matching(pattern, units);
    if (table->units.empty()) {
      std::string names;
      for (const std::string& expert : experts) names += (names.empty() ? "" : " or ") + expert + ".";
      throw UserError(
          Exit::usage, "plan.units", "match = \"" + one.match + "\": no unit of the model is named so",
          "its units are " + listed(units) + (names.empty() ? "" : "; of one expert: " + names + " and one of these"));
    }
    if (table->expert >= 0)
      for (const char* key : {"parameters", "gradients", "states", "update_on"})
        if (table->keys.contains(key))
          throw UserError(Exit::usage, "plan.units",
                          "match = \"" + one.match + "\" has " + key + ", and all experts use the same buffers",
                          "of one expert set strategy, activations, sites, offload_to or reduce; " + std::string(key) +
                              " with match = \"" + pattern + "\"");
    tables_.push_back(std::move(table));
  }
}

UnitsByHand::~UnitsByHand() = default;

void UnitsByHand::apply(std::vector<UnitPlan>& units) const {
  for (const auto& table : tables_)
    if (table->expert < 0) table->apply(units);
}

Plan UnitsByHand::with_experts(Plan plan) const {
  if (!any_of_one_expert()) return plan;
  const std::vector<UnitPlan> all = plan.units;
  for (int e = 0; e < experts_; ++e) {
    std::vector<UnitPlan> own = all;
    for (const auto& table : tables_)
      if (table->expert == e) table->apply(own);
    if (e == 0)
      plan.units = std::move(own);
    else if (own != plan.units)
      plan.of_expert[e] = std::move(own);
  }
  plan.check_experts("plan.units");
  return plan;
}

bool UnitsByHand::sets(size_t unit, std::string_view key) const {
  return std::ranges::any_of(tables_, [&](const auto& table) {
    return table->expert < 0 && (table->keys.contains(key) || table->keys.contains("update_on")) &&
           std::ranges::find(table->units, unit) != table->units.end();
  });
}

bool UnitsByHand::any_of_one_expert() const {
  return std::ranges::any_of(tables_, [](const auto& table) { return table->expert >= 0; });
}

double mean_seconds(const std::vector<double>& seconds, const std::vector<double>& shares) {
  double sum = 0, whole = 0;
  for (size_t e = 0; e < seconds.size(); ++e) {
    const double share = e < shares.size() ? shares[e] : shares.empty() ? 1 : 0;
    sum += share * seconds[e], whole += share;
  }
  return whole > 0 ? sum / whole : seconds.empty() ? 0 : seconds[0];
}

}  // namespace tessera::plan
