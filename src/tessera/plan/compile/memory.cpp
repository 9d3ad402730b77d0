#include "tessera/plan/compile/memory.h"

#include <algorithm>

#include "tessera/plan/compile/activation_walk.h"
#include "tessera/plan/shared_weights.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank, int64_t arena,
                         int64_t host_arena) {
  MemoryCurve curve;
  MemoryParts base;
  const UnitSizes sizes(model, plan, rank);
  const auto place = [&](Tier tier) -> MemoryParts& {
    return tier == Tier::device ? base : tier == Tier::host ? curve.host : curve.nvme;
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    if (!plan.owns(rank, static_cast<int>(u))) continue;
    const UnitLayout& layout = sizes.layout(static_cast<int>(u));
    const UnitPlan& unit = plan.units[u];
    const int64_t whole = shard_bytes(layout, plan.states.masters);
    const int64_t parameters =
        unit.parameters == Tier::host ? counted_host_bytes(plan, layout, static_cast<int>(u), rank) : whole;
    curve.spared += plan.experts * (whole - parameters);
    const int64_t moments = sizes.state_bytes(static_cast<int>(u));
    place(unit.parameters).parameters += parameters;
    if (!plan.transient_gradient(layout, static_cast<int>(u)))
      // shared by experts: no gradient outlives an expert's step
      place(unit.gradients).gradients += plan.gradient_bytes(layout);
    place(unit.states).states += moments;
    place(plan.inactive_tier(unit.parameters)).parameters += (plan.experts - 1) * parameters;
    place(plan.inactive_tier(unit.states)).states += (plan.experts - 1) * moments;
  }
  curve.host.slots = std::max(host_arena, schedule.host_arena);
  curve.nvme.activations = schedule.disk_arena;
  curve.persistent = base.total();
  base.slots = std::max(arena, schedule.arena) + swap_piece(model, plan);
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
    curve.by_part = base;
    curve.by_part.activations += held;
    curve.by_part.temporaries = highest - base.total() - held;
  }
  if (curve.at >= 0) {
    const Instruction& in = schedule.list[static_cast<size_t>(curve.at)];
    curve.at_name = std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name);
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
