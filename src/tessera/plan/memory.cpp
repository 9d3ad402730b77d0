#include "tessera/plan/memory.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/activation_walk.h"

namespace tessera::plan {

std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan) {
  std::string sites;
  if (plan.activations != Policy::recompute) return sites;
  for (const auto& [site, bytes] : unit.cost.results)
    if (plan.policy(site) != Policy::recompute) sites += (sites.empty() ? "" : ",") + site;
  return sites;
}

void check_sites(const ModelSpec& model, const Plan& plan) {
  for (size_t u = 0; u < model.units.size() && u < plan.units.size(); ++u) {
    const Footprint& f = model.units[u].cost;
    const bool again = plan.units[u].activations == Policy::recompute;
    std::vector<std::string> known = {std::string(kBoundary)};
    const auto& saved = f.graph(plan.units[u].lean()).saved_by_site;
    for (const auto& [site, bytes] : again ? f.results : saved) known.push_back(site);
    for (const auto& [site, policy] : plan.units[u].sites)
      if (std::find(known.begin(), known.end(), site) == known.end())
        throw UserError(Exit::usage, "plan.sites",
                        model.units[u].name + " has no site '" + site + "' to " + std::string(name(policy)) +
                            (again ? " (a recomputed unit keeps what these made, and its boundary)" : ""),
                        "did you mean '" + nearest(site, known).front() + "'?");
    if (again && !replayed_sites(model.units[u], plan.units[u]).empty() &&
        !f.replays.contains(replayed_sites(model.units[u], plan.units[u])))
      throw UserError(Exit::usage, "plan.sites",
                      model.units[u].name + ": with so many sites all of them are kept or none",
                      "name them all in sites, or none");
  }
}

namespace {

/// Calls `each(policy, bytes, compact)` for all that a unit's plan may put elsewhere: its input, and what its sites
/// saved or made. The first unit's input is the batch, which others read.
template <typename Each>
void each_saved(const ModelSpec& model, const Plan& plan, int unit, const Each& each) {
  const UnitPlan& choice = plan.units[unit];
  const Footprint& f = model.units[unit].cost;
  const bool again = choice.activations == Policy::recompute;
  if (unit > 0) {
    const Footprint& before = model.units[unit - 1].cost;
    each(choice.policy(kBoundary), before.out, before.compact_out);
  }
  const GraphCost& graph = f.graph(choice.lean());
  const auto& compact = again ? f.compact_results : graph.compact_by_site;
  for (const auto& [site, bytes] : again ? f.results : graph.saved_by_site) {
    const auto found = compact.find(site);
    each(choice.policy(site), bytes, found == compact.end() ? Compact{} : found->second);
  }
}

const Compact::InForm& in_form(const Compact& compact, Policy policy) {
  return compact.forms[static_cast<size_t>(form(policy)) - static_cast<size_t>(Form::bf16)];
}

}  // namespace

Compressed compressed_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  Compressed sum;
  if (!plan.units[unit].compresses()) return sum;
  each_saved(model, plan, unit, [&](Policy policy, int64_t, const Compact& compact) {
    if (!is_lossy(policy)) return;
    sum.whole += in_form(compact, policy).whole;
    (leaves_device(policy) ? sum.away : sum.kept) += in_form(compact, policy).bytes;
  });
  return sum;
}

int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  int64_t sum = 0;
  each_saved(model, plan, unit, [&](Policy policy, int64_t bytes, const Compact& compact) {
    if (!leaves_device(policy)) return;
    sum += bytes;
    if (is_lossy(policy)) sum += in_form(compact, policy).bytes - in_form(compact, policy).whole;
  });
  return sum;
}

MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank, int64_t arena,
                         int64_t host_arena) {
  MemoryCurve curve;
  MemoryParts base;
  const StatesOf states = adamw_states(plan.states);
  const auto place = [&](Tier tier) -> MemoryParts& {
    return tier == Tier::device ? base : tier == Tier::host ? curve.host : curve.nvme;
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    if (!plan.owns(rank, static_cast<int>(u))) continue;
    const UnitLayout layout = plan.layout(model.units[u], static_cast<int>(u));
    const UnitPlan& unit = plan.units[u];
    const int64_t parameters = shard_bytes(layout, plan.states.masters);
    const int64_t moments = state_layout(model.units[u], layout, plan.held(layout, rank), states).bytes;
    place(unit.parameters).parameters += parameters;
    if (!plan.transient_gradient(layout, static_cast<int>(u)))
      place(unit.gradients).gradients += plan.gradient_bytes(layout);  // experts share them: none outlives its turn
    place(unit.states).states += moments;
    place(plan.resting(unit.parameters)).parameters += (plan.experts - 1) * parameters;
    place(plan.resting(unit.states)).states += (plan.experts - 1) * moments;
  }
  curve.host.slots = std::max(host_arena, schedule.host_arena);
  curve.nvme.activations = schedule.disk_arena;
  curve.persistent = base.total();
  base.slots = std::max(arena, schedule.arena);
  base.activations = model.resident;
  ActivationWalk walk(model, plan, rank, schedule.phase == "train");
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    const Instruction& in = schedule.list[i];
    const int64_t held = walk.live();
    const int64_t highest = base.total() + walk.run(in);
    curve.live.push_back(highest);
    if (highest <= curve.peak) continue;
    curve.peak = highest;
    curve.at = static_cast<int>(i);
    curve.at_name = std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name);
    curve.by_part = base;
    curve.by_part.activations += held;
    curve.by_part.temporaries = highest - base.total() - held;
  }
  if (const int64_t idle = base.total() + model.between_steps; schedule.phase == "train" && idle > curve.peak) {
    curve.peak = idle;
    curve.at = static_cast<int>(schedule.list.size()) - 1;
    curve.at_name = "a sample's decoding";
    curve.by_part = base;
    curve.by_part.temporaries = model.between_steps;
  }
  return curve;
}

}  // namespace tessera::plan
