#include "tessera/plan/memory.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/activation_walk.h"

namespace tessera::plan {

std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan) {
  std::string sites;
  if (plan.activations != Policy::recompute) return sites;
  for (const auto& [site, bytes] : unit.cost.attention)
    if (plan.policy(site) != Policy::recompute) sites += (sites.empty() ? "" : ",") + site;
  return sites;
}

void check_sites(const ModelSpec& model, const Plan& plan) {
  for (size_t u = 0; u < model.units.size() && u < plan.units.size(); ++u) {
    const Footprint& f = model.units[u].cost;
    const bool again = plan.units[u].activations == Policy::recompute;
    std::vector<std::string> known = {std::string(kBoundary)};
    for (const auto& [site, bytes] : again ? f.attention : f.saved_by_site) known.push_back(site);
    for (const auto& [site, policy] : plan.units[u].sites)
      if (std::find(known.begin(), known.end(), site) == known.end())
        throw UserError(Exit::usage, "plan.sites",
                        model.units[u].name + " has no site '" + site + "' to " + std::string(name(policy)) +
                            (again ? " (a recomputed unit keeps what attention made, and its boundary)" : ""),
                        "did you mean '" + nearest(site, known).front() + "'?");
    if (again && !replayed_sites(model.units[u], plan.units[u]).empty() &&
        !f.replays.contains(replayed_sites(model.units[u], plan.units[u])))
      throw UserError(Exit::usage, "plan.sites",
                      model.units[u].name + ": with so many attention sites all of them are kept or none",
                      "name them all in sites, or none");
  }
}

int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit) {
  const UnitPlan& choice = plan.units[unit];
  const Footprint& f = model.units[unit].cost;
  // The first unit's input is the batch, which others read.
  int64_t bytes = unit > 0 && choice.policy(kBoundary) == Policy::offload ? model.units[unit - 1].cost.out : 0;
  for (const auto& [site, saved] : choice.activations == Policy::recompute ? f.attention : f.saved_by_site)
    if (choice.policy(site) == Policy::offload) bytes += saved;
  return bytes;
}

MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank, int64_t arena) {
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
    place(unit.parameters).parameters += shard_bytes(layout, plan.states.masters);
    place(unit.gradients).gradients += layout.grad_shard * 4;
    place(unit.states).states += state_layout(model.units[u], layout, plan.shard_ranks(layout, rank), states).bytes;
  }
  curve.host.slots = schedule.host_arena;
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
