#include "tessera/plan/search/plan_warnings.h"

#include <toml++/toml.h>
#include <algorithm>

#include "tessera/base/toml_text.h"
#include "tessera/plan/plan_rows.h"
#include "tessera/plan/unit_keys.h"

namespace tessera::plan {

namespace {

/// "blocks.2", "blocks.2 and blocks.3", "blocks.2, blocks.3 and 5 more".
std::string listed(const std::vector<size_t>& units, const std::vector<std::string>& names) {
  constexpr size_t kNamed = 2;
  std::string text = names[units[0]];
  if (units.size() == kNamed) return text + " and " + names[units[1]];
  if (units.size() > kNamed) text += ", " + names[units[1]] + " and " + std::to_string(units.size() - kNamed) + " more";
  return text;
}

void warn_about_units(const toml::array& tables, const std::vector<std::string>& names,
                      std::vector<std::string>& notes) {
  std::vector<int> apart(names.size()), all(names.size());
  for (const toml::node& node : tables) {
    const std::string pattern = (*node.as_table())["name"].value_or(std::string());
    for (const size_t u : matching(pattern, names)) ++(pattern.ends_with('*') ? all : apart)[u];
  }
  std::vector<size_t> nowhere, twice;
  for (size_t u = 0; u < names.size(); ++u) {
    if (apart[u] + all[u] == 0) nowhere.push_back(u);
    if (apart[u] > 1) twice.push_back(u);
  }
  if (!nowhere.empty() && nowhere.size() < names.size())
    notes.push_back("no [[units]] table names " + listed(nowhere, names) +
                    ": full_shard, keeping all on the device (name = \"*\" in the first table covers all units)");
  if (!twice.empty())
    notes.push_back("two [[units]] tables name " + listed(twice, names) + ": the later table applies");
}

}  // namespace

std::vector<std::string> plan_warnings(const std::string& text, const Plan& plan,
                                       const std::vector<std::string>& names) {
  std::vector<std::string> notes;
  const toml::table root = parse_toml(text);
  if (const toml::array* tables = root["units"].as_array()) warn_about_units(*tables, names, notes);
  const Plan untouched;
  for (const Row<Plan>& row : plan_rows()) {
    if (!row.idle || row.text(plan) == row.text(untouched)) continue;
    if (const std::string why(row.idle(plan)); !why.empty())
      notes.push_back(std::string(row.key) + " = " + row.text(plan) + " has no effect: " + why);
  }
  if (root.contains("pipeline") && plan.mesh[Axis::pp] == 1)
    notes.push_back("[pipeline] has no effect: the mesh has no pp");
  std::vector<size_t> nothing_sent;
  bool sent = false;  // by any unit: then the key covers all units, those without offload included
  for (size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].offload_to != Tier::nvme) continue;
    sent |= plan.units[u].offloads();
    nothing_sent.push_back(u);
  }
  if (!nothing_sent.empty() && !sent)
    notes.push_back("offload_to = \"nvme\" of " + listed(nothing_sent, names) +
                    " has no effect: no activations are offloaded there (activations = \"offload\" does that)");
  return notes;
}

}  // namespace tessera::plan
