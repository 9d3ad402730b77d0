#include "tessera/plan/search/evaluator.h"

#include "tessera/base/units.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/saved_bytes.h"
#include "tessera/plan/search/planner_messages.h"

namespace tessera::plan {

/// Peak over all schedules of a run. Just-in-time updates also run alone before a sample or a checkpoint, and the
/// first step has none: these arenas have another layout and may be larger. They are not compiled if the step alone
/// is over the budget.
MemoryCurve Evaluator::whole_run(const Plan& plan, const RankGroup& group) const {
  MemoryCurve curve = memory_curve(model, plan, group.schedule, group.rank);
  const bool over = (input.budget > 0 && curve.peak > input.budget) ||
                    (input.host_budget > 0 && curve.host.total() > input.host_budget);
  if (plan.update != Update::just_in_time || over) return curve;
  int64_t arena = group.schedule.arena, host_arena = group.schedule.host_arena;
  for (const Schedule& other :
       {compile_updates(model, plan, group.rank), compile_train(model, plan, group.rank, /*pending=*/false)}) {
    arena = std::max(arena, other.arena);
    host_arena = std::max(host_arena, other.host_arena);
  }
  if (arena == group.schedule.arena && host_arena == group.schedule.host_arena) return curve;
  return memory_curve(model, plan, group.schedule, group.rank, arena, host_arena);
}

Evaluated Evaluator::evaluate(Plan plan) const {
  Evaluated e;
  // Host updates need all of their buffers on the host; otherwise the device updates the unit.
  for (UnitPlan& unit : plan.units)
    if (unit.parameters != Tier::host || unit.gradients != Tier::host || unit.states != Tier::host)
      unit.update_on = Tier::device;
  e.candidate.plan = std::move(plan);
  Candidate& c = e.candidate;
  std::vector<RankGroup> groups = rank_groups(model, c.plan);
  for (const RankGroup& group : groups) {
    MemoryCurve curve = whole_run(c.plan, group);
    c.host = std::max(c.host, curve.host.total());
    if (curve.peak > e.memory.peak) e.memory = std::move(curve);
  }
  c.peak = e.memory.peak;
  const bool device = input.budget <= 0 || c.peak <= input.budget;
  const bool host = c.host == 0 || input.host_budget <= 0 || c.host <= input.host_budget;
  c.fits = device && host;
  c.why = !device            ? format_bytes(c.peak - input.budget) + " over the budget"
          : !host            ? format_bytes(c.host - input.host_budget) + " over the host's budget"
          : input.budget > 0 ? "fits with " + format_bytes(input.budget - c.peak) + " to spare"
                             : "fits";
  if (c.fits) c.seconds = predict(model, c.plan, machine, std::move(groups)).step.total;
  return e;
}

Evaluated Evaluator::within_host_budget(Evaluated e) const {
  if (e.candidate.fits || over_host(input, e.candidate) <= 0 || over_device(input, e.candidate) > 0) return e;
  Evaluated less = unload_host(e.candidate);
  return less.candidate.fits ? less : e;
}

/// The same plan with units' buffers moved back to the device until the host budget holds. For units updated on the
/// host, all three buffers of the first units first: their gradients are complete last, so the next step waits for
/// their updates.
Evaluated Evaluator::unload_host(const Candidate& from) const {
  Plan plan = from.plan;
  int64_t over = over_host(input, from);
  const StatesOf states = states_of(plan.states);
  const auto move_to_device = [&](size_t u, Tier UnitPlan::*part) {
    if (plan.units[u].*part != Tier::host || input.*user_tier_of(part)) return;
    const UnitLayout layout = plan.layout(model.units[u], static_cast<int>(u));
    over -= part == &UnitPlan::gradients    ? plan.gradient_bytes(layout)
            : part == &UnitPlan::parameters ? shard_bytes(layout, plan.states.masters)
                                            : state_layout(model.units[u], layout, plan.held(layout, 0), states).bytes;
    plan.units[u].*part = Tier::device;
  };
  for (size_t u = 0; u < plan.units.size() && over > 0; ++u)
    if (plan.units[u].update_on == Tier::host)
      for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters})
        move_to_device(u, part);
  for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters})
    for (size_t u = plan.units.size(); u-- > 0 && over > 0;) move_to_device(u, part);
  return evaluate(std::move(plan));
}

/// `change(plan, n)` of the smallest n up to `limit` that fits; empty if none does.
template <typename Change>
std::optional<Evaluated> Evaluator::least(const Candidate& from, size_t limit, const Change& change) const {
  const auto with = [&](int n) {
    Plan plan = from.plan;
    change(plan, static_cast<size_t>(n));
    return evaluate(std::move(plan));
  };
  if (limit == 0) return std::nullopt;
  Evaluated all = with(static_cast<int>(limit));
  if (!all.candidate.fits) return std::nullopt;
  return fewest(static_cast<int>(limit), std::move(all), with);
}

std::optional<Evaluated> Evaluator::spill_to_disk(const Candidate& from) const {
  std::vector<size_t> activations, states;
  for (size_t u = 0; u < from.plan.units.size(); ++u) {
    if (offloaded_bytes(model, from.plan, static_cast<int>(u)) > 0) activations.push_back(u);
    if (from.plan.units[u].states == Tier::host && from.plan.units[u].update_on == Tier::device) states.push_back(u);
  }
  if (input.offload_to) activations.clear();
  if (input.states_tier) states.clear();
  std::optional<Evaluated> best = least(from, activations.size(), [&](Plan& plan, size_t n) {
    // the first units reload last
    for (size_t i = 0; i < n; ++i) plan.units[activations[i]].offload_to = Tier::nvme;
  });
  std::optional<Evaluated> other = least(from, states.size(), [&](Plan& plan, size_t n) {
    for (size_t i = 0; i < states.size(); ++i)  // evenly spread, so that disk transfers overlap the units between
      if ((i + 1) * n / states.size() > i * n / states.size()) plan.units[states[i]].states = Tier::nvme;
  });
  return other && (!best || is_better(other->candidate, best->candidate)) ? other : best;
}

std::optional<Tier> Choices::*user_tier_of(Tier UnitPlan::*part) {
  return part == &UnitPlan::gradients    ? &Choices::gradients
         : part == &UnitPlan::parameters ? &Choices::parameters
                                         : &Choices::states_tier;
}

bool is_better(const Candidate& a, const Candidate& b) {
  if (a.seconds < b.seconds * (1 - 1e-9)) return true;
  return a.seconds <= b.seconds * (1 + 1e-9) && a.host < b.host;
}

bool Pool::consider(Evaluated e) {
  const PlannerInput& input = evaluator_.input;
  e = evaluator_.within_host_budget(std::move(e));
  if (!e.candidate.fits && over_host(input, e.candidate) > 0 && over_device(input, e.candidate) <= 0 && input.nvme)
    if (std::optional<Evaluated> onward = evaluator_.spill_to_disk(e.candidate)) e = std::move(*onward);
  const bool better = e.candidate.fits && (!best || is_better(e.candidate, best->candidate));
  const auto excess = [&](const Evaluated& x) {
    return std::pair(
        std::max<int64_t>(0, over_device(input, x.candidate)) + std::max<int64_t>(0, over_host(input, x.candidate)),
        x.candidate.peak);
  };
  if (!smallest || excess(e) < excess(*smallest)) smallest = e;
  if (better) best = e;
  candidates.push_back(std::move(e.candidate));
  return better;
}

}  // namespace tessera::plan
