#include "tessera/plan/search/evaluator.h"

#include <tuple>

#include "tessera/base/units.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/search/candidate.h"
#include "tessera/plan/shared_weights.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

/// The steps of a plan's experts.
struct Evaluated::Steps {
  std::vector<Plan> of_expert;
  int64_t repeated = 0;  ///< micro-batches that are not in them
  bool whole = false;    ///< all have to be
};

namespace {
ArenaBytes arenas_of(const Schedule& schedule) { return {schedule.arena, schedule.host_arena}; }
}  // namespace

/// Peak over all schedules of a run. Just-in-time updates also run alone before a sample or a checkpoint, and the
/// first step has none: these arenas have another layout and may be larger. They are not compiled if the step alone
/// is over the budget. `least`: arenas that other experts' steps need.
MemoryCurve Evaluator::whole_run(const Plan& plan, const RankGroup& group, const ArenaBytes& least) const {
  const ArenaBytes step = least.covering(arenas_of(group.schedule));
  MemoryCurve curve = memory_curve(model, plan, group.schedule, group.rank, step.device, step.host);
  const bool over = (input.budget > 0 && curve.peak > input.budget) ||
                    (input.host_budget > 0 && curve.host.total() > input.host_budget);
  if (plan.update != Update::just_in_time || over) return curve;
  const ArenaBytes arenas = step.covering(arenas_without_pending(model, plan, group.rank));
  if (arenas == step) return curve;
  return memory_curve(model, plan, group.schedule, group.rank, arenas.device, arenas.host);
}

std::vector<Plan> Evaluator::steps_of(const Plan& plan) const {
  if (!by_hand.any_of_one_expert()) return {plan};
  const Plan whole = by_hand.with_experts(plan);
  std::vector<Plan> steps;
  for (int e = 0; e < plan.experts; ++e) steps.push_back(whole.as_of(e));
  return steps;
}

namespace {

constexpr int64_t kMicros = 3;  // the first, one like all others between, and the last

/// The plan with kMicros micro-batches, and how many it has more: [Note: many micro-batches]. Every dp rank has so many
/// full micro-batches less, and stages of a pipeline hold more of them at once.
std::pair<Plan, int64_t> shortened(Plan plan) {
  const int64_t more = plan.accumulation() - kMicros;
  if (more <= 0 || plan.mesh[Axis::pp] > 1 || !plan.shares.empty()) return {std::move(plan), 0};
  plan.global_batch -= more * plan.micro_batch * plan.mesh.dp_size();
  return {std::move(plan), more};
}

}  // namespace

Prediction Evaluator::predicted(const Plan& plan) const {
  const auto [step, more] = shortened(plan);
  return predict(model, step, machine, {}, more);
}

StepSeconds Evaluator::seconds(Plan plan) const {
  by_hand.apply(plan.units);
  std::vector<double> total, compute;
  for (const Plan& step : steps_of(plan)) {
    const StepSeconds seconds = predicted(step).step;
    total.push_back(seconds.total), compute.push_back(seconds.compute);
  }
  StepSeconds mean;
  mean.total = mean_seconds(total, input.expert_shares), mean.compute = mean_seconds(compute, input.expert_shares);
  return mean;
}

namespace {

/// Of the fields in which plans of one search mostly differ.
size_t hash_of(const Plan& plan) {
  size_t hash = static_cast<size_t>(plan.update) * 8 + static_cast<size_t>(plan.prefetch);
  const auto add = [&](auto value) { hash = (hash ^ static_cast<size_t>(value)) * 1099511628211u; };  // FNV-1a
  for (const UnitPlan& unit : plan.units) {
    add((static_cast<int>(unit.activations.graph) * 3 + static_cast<int>(unit.activations.tier)) * kStrategies +
        static_cast<int>(unit.strategy));
    for (const Tier tier : {unit.parameters, unit.gradients, unit.states, unit.offload_to, unit.update_on}) add(tier);
    for (const auto& [site, policy] : unit.sites) add(site.size() * 3 + static_cast<size_t>(policy.tier));
  }
  return hash;
}

}  // namespace

const Evaluated* Evaluator::known(const Plan& plan) const {
  const auto [first, last] = known_.equal_range(hash_of(plan));
  const auto found = std::find_if(first, last, [&](const auto& k) { return k.second.candidate.plan == plan; });
  return found == last ? nullptr : &found->second;
}

void Evaluator::remember(const Evaluated& e) const { known_.emplace(hash_of(e.candidate.plan), e); }

Evaluated Evaluator::measured(Plan plan, bool whole) const {
  Evaluated e;
  by_hand.apply(plan.units);
  // Host updates need all of their buffers on the host; otherwise the device updates the unit.
  for (UnitPlan& unit : plan.units)
    if (unit.parameters != Tier::host || unit.gradients != Tier::host || unit.states != Tier::host)
      unit.update_on = Tier::device;
  if (const Evaluated* before = whole ? nullptr : known(plan)) return *before;
  ++evaluated_;
  e.candidate.plan = std::move(plan);
  Candidate& c = e.candidate;
  const auto of_experts = std::make_shared<Evaluated::Steps>();
  auto& [steps, repeated, is_whole] = *of_experts;
  e.steps = of_experts;
  is_whole = whole;
  steps = steps_of(c.plan);
  if (!whole)
    for (Plan& step : steps) std::tie(step, repeated) = shortened(std::move(step));
  ArenaBytes arenas;
  std::vector<std::vector<RankGroup>> groups;
  for (const Plan& step : steps)
    for (const RankGroup& group :
         groups.emplace_back(rank_groups(model, step, whole ? CompiledFor::run : CompiledFor::memory)))
      if (steps.size() > 1) arenas = arenas.covering(arenas_of(group.schedule));
  for (size_t s = 0; s < steps.size(); ++s)
    for (const RankGroup& group : groups[s]) {
      MemoryCurve curve = whole_run(steps[s], group, arenas);
      c.host = std::max(c.host, curve.host.total()), e.disk = std::max(e.disk, curve.nvme.total());
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
  if (c.fits) return e;
  e.steps.reset();
  if (!whole) remember(e);
  return e;
}

Evaluated Evaluator::timed(Evaluated e) const {
  if (!e.steps) return e;
  const auto& [steps, repeated, whole] = *e.steps;
  std::vector<double> seconds;
  for (const Plan& step : steps) seconds.push_back(predict(model, step, machine, {}, repeated).step.total);
  e.candidate.seconds = seconds.size() == 1 ? seconds[0] : mean_seconds(seconds, input.expert_shares);
  const bool repeats = !whole;
  e.steps.reset();
  if (repeats) remember(e);
  return e;
}

namespace {

std::string_view key_of(Tier UnitPlan::*part) {
  return part == &UnitPlan::gradients ? "gradients" : part == &UnitPlan::parameters ? "parameters" : "states";
}

}  // namespace

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
  const UnitSizes sizes(model, plan, /*rank=*/0);
  const auto move_to_device = [&](size_t u, Tier UnitPlan::*part) {
    if (plan.units[u].*part != Tier::host || input.*user_tier_of(part) || by_hand.sets(u, key_of(part))) return;
    const UnitLayout& layout = sizes.layout(static_cast<int>(u));
    over -= part == &UnitPlan::gradients    ? plan.gradient_bytes(layout)
            : part == &UnitPlan::parameters ? counted_host_bytes(plan, layout, static_cast<int>(u), /*rank=*/0)
                                            : sizes.state_bytes(static_cast<int>(u));
    plan.units[u].*part = Tier::device;
  };
  for (size_t u = 0; u < plan.units.size() && over > 0; ++u)
    if (plan.units[u].update_on == Tier::host)
      for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters})
        move_to_device(u, part);
  for (Tier UnitPlan::*part : {&UnitPlan::gradients, &UnitPlan::states, &UnitPlan::parameters})
    for (size_t u = plan.units.size(); u-- > 0 && over > 0;) move_to_device(u, part);
  return measured(std::move(plan));
}

/// `change(plan, n)` of the smallest n up to `limit` that fits; empty if none does.
template <typename Change>
std::optional<Evaluated> Evaluator::least(const Candidate& from, size_t limit, const Change& change) const {
  const auto with = [&](int n) {
    Plan plan = from.plan;
    change(plan, static_cast<size_t>(n));
    return measured(std::move(plan));
  };
  if (limit == 0) return std::nullopt;
  Evaluated all = with(static_cast<int>(limit));
  if (!all.candidate.fits) return std::nullopt;
  return timed(fewest(static_cast<int>(limit), std::move(all), with));
}

Evaluator::Bound Evaluator::bound(int n, const Candidate& candidate) const {
  return {n, over_device(input, candidate), over_host(input, candidate)};
}

int Evaluator::between(const Bound& over, const Bound& fits, int round) {
  constexpr int kMiddle = 3;
  const int apart = fits.n - over.n;
  double share = 1;  // of the way down from what fits
  const auto met = [&](int64_t inside, int64_t outside) {
    if (outside > 0 && inside <= 0)
      share = std::min(share, static_cast<double>(-inside) / static_cast<double>(outside - inside));
  };
  met(fits.over_device, over.over_device), met(fits.over_host, over.over_host);
  const int down = round % kMiddle == kMiddle - 1 ? apart / 2 : static_cast<int>(share * apart);
  return fits.n - std::clamp(down, 1, apart - 1);
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
  e = evaluator_.timed(std::move(e));
  const bool better = e.candidate.fits && (!best || is_better(e.candidate, best->candidate));
  const auto excess = [&](const Evaluated& x) {
    return std::pair(
        std::max<int64_t>(0, over_device(input, x.candidate)) + std::max<int64_t>(0, over_host(input, x.candidate)),
        x.candidate.peak);
  };
  if (!smallest || excess(e) < excess(*smallest)) smallest = e;
  if (better) best = e;
  e.candidate.plan = evaluator_.by_hand.with_experts(std::move(e.candidate.plan));
  candidates.push_back(std::move(e.candidate)), disk.push_back(e.disk);
  return better;
}

}  // namespace tessera::plan
