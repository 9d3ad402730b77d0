#include "tessera/plan/compile/saved_bytes.h"

#include <algorithm>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::plan {

std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan) {
  std::string sites;
  if (!plan.recomputes()) return sites;
  for (const auto& [site, bytes] : unit.cost.results)
    if (plan.policy(site) != Policy::recompute) sites += (sites.empty() ? "" : ",") + site;
  return sites;
}

void check_sites(const ModelSpec& model, const Plan& plan) {
  for (size_t u = 0; u < model.units.size() && u < plan.units.size(); ++u) {
    const Footprint& f = model.units[u].cost;
    const bool recomputes = plan.units[u].recomputes();
    std::vector<std::string> known = {std::string(kBlockInput)};
    const auto& saved = f.graph(plan.units[u].selective()).saved_by_site;
    for (const auto& [site, bytes] : recomputes ? f.results : saved) known.push_back(site);
    for (const auto& [site, policy] : plan.units[u].sites)
      if (std::find(known.begin(), known.end(), site) == known.end())
        throw UserError(
            Exit::usage, "plan.sites",
            model.units[u].name + " has no site '" + site + "' to " + std::string(name(policy)) +
                (recomputes ? " (a recomputed unit can keep the results of these sites and its boundary)" : ""),
            "did you mean '" + nearest(site, known).front() + "'?");
    if (recomputes && !replayed_sites(model.units[u], plan.units[u]).empty() &&
        !f.replays.contains(replayed_sites(model.units[u], plan.units[u])))
      throw UserError(Exit::usage, "plan.sites", model.units[u].name + " has too many sites to keep some of them",
                      "name all of its sites in sites, or none");
  }
}

namespace {

/// Calls `each(policy, bytes, compact)` for everything that a unit's plan may offload or quantise: its input and the
/// tensors saved (or results, if recomputed) by its sites. The first unit's input is the batch and is excluded.
template <typename Each>
void each_saved(const ModelSpec& model, const Plan& plan, int unit, const Each& each) {
  const UnitPlan& choice = plan.units[unit];
  const Footprint& f = model.units[unit].cost;
  const bool recomputes = choice.recomputes();
  if (unit > 0) {
    const Footprint& before = model.units[unit - 1].cost;
    each(choice.policy(kBlockInput), before.out, before.compact_out);
  }
  const GraphCost& graph = f.graph(choice.selective());
  const auto& compact = recomputes ? f.compact_results : graph.compact_by_site;
  for (const auto& [site, bytes] : recomputes ? f.results : graph.saved_by_site) {
    const auto found = compact.find(site);
    each(choice.policy(site), bytes, found == compact.end() ? Compact{} : found->second);
  }
}

}  // namespace

Compressed compressed_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  Compressed sum;
  if (!plan.units[unit].compresses()) return sum;
  each_saved(model, plan, unit, [&](const Policy& policy, int64_t, const Compact& compact) {
    if (!is_lossy(policy)) return;
    sum.whole += compact[*policy.form].whole;
    (leaves_device(policy) ? sum.offloaded : sum.kept) += compact[*policy.form].bytes;
  });
  return sum;
}

int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  int64_t sum = 0;
  each_saved(model, plan, unit, [&](const Policy& policy, int64_t bytes, const Compact& compact) {
    if (!leaves_device(policy)) return;
    sum += bytes;
    if (is_lossy(policy)) sum += compact[*policy.form].bytes - compact[*policy.form].whole;
  });
  return sum;
}

}  // namespace tessera::plan
