#include "tessera/plan/planner.h"

#include <algorithm>

#include "tessera/base/units.h"

namespace tessera::plan {

namespace {

/// A choice by hand is kept; when the planner's own would be faster by more than this share, it says so.
constexpr double kWorthSaying = 0.02;

/// The first `recompute` blocks recompute: they are needed last in backward, so what they would keep lives longest.
Plan make_plan(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, int prefetch, Strategy strategy,
               int recompute) {
  Plan plan;
  plan.mesh = mesh;
  plan.global_batch = input.global_batch;
  plan.micro_batch = input.micro_batch;
  plan.prefetch = prefetch;
  plan.states = input.states;
  plan.param_dtype = input.param_dtype;
  for (const auto& unit : model.units) {
    UnitPlan choice;
    choice.strategy = strategy;
    if (unit.kind == "block" && recompute > 0) choice.activations = Policy::recompute, --recompute;
    plan.units.push_back(choice);
  }
  return plan;
}

}  // namespace

std::string slower_by_hand(const ModelSpec& model, const Mesh& mesh, PlannerInput input, const Machine& machine,
                           double seconds) {
  input.prefetch.reset(), input.recompute_units.reset(), input.strategy.reset();
  const Choice free = choose(model, mesh, input, machine);
  if (!free.fits || free.seconds >= seconds * (1 - kWorthSaying)) return {};
  return "a step of this plan, with what was set by hand, takes " + format_seconds(seconds) + "; \"" +
         free.plan.summary() + "\" would take " + format_seconds(free.seconds) +
         " and fits (leave plan.* on auto for it)";
}

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Machine& machine) {
  int blocks = 0;
  for (const auto& unit : model.units) blocks += unit.kind == "block";
  std::vector<int> depths = {1, 2, 0};
  if (input.prefetch) depths = {*input.prefetch};
  std::vector<Strategy> strategies = {Strategy::shard_grad_op, Strategy::full_shard};
  if (input.strategy) strategies = {*input.strategy};
  if (mesh.shard_size() == 1) strategies = {input.strategy.value_or(Strategy::full_shard)}, depths.resize(1);

  Choice choice;
  const Candidate* smallest = nullptr;
  const Candidate* best = nullptr;
  MemoryCurve best_memory, smallest_memory;
  choice.candidates.reserve(strategies.size() * depths.size() * (blocks + 1));
  for (Strategy strategy : strategies) {
    for (int depth : depths) {
      const int first = input.recompute_units ? std::min(*input.recompute_units, blocks) : 0;
      const int last = input.recompute_units ? first : blocks;
      for (int recompute = first; recompute <= last; ++recompute) {
        Candidate c;
        c.plan = make_plan(model, mesh, input, depth, strategy, recompute);
        std::vector<RankGroup> groups = rank_groups(model, c.plan);
        MemoryCurve memory;
        for (const RankGroup& group : groups) {
          MemoryCurve curve = memory_curve(model, c.plan, group.schedule, group.rank);
          if (curve.peak > memory.peak) memory = std::move(curve);
        }
        c.peak = memory.peak;
        c.fits = input.budget <= 0 || c.peak <= input.budget;
        c.seconds = predict(model, c.plan, machine, std::move(groups)).step.total;
        c.why = !c.fits            ? format_bytes(c.peak - input.budget) + " over the budget"
                : input.budget > 0 ? "fits with " + format_bytes(input.budget - c.peak) + " to spare"
                                   : "fits";
        choice.candidates.push_back(std::move(c));
        const Candidate& added = choice.candidates.back();
        if (!smallest || added.peak < smallest->peak) smallest = &added, smallest_memory = memory;
        if (added.fits && (!best || added.seconds < best->seconds * (1 - 1e-9))) best = &added, best_memory = memory;
        if (added.fits && !input.recompute_units) break;  // more recompute only costs time
      }
    }
  }
  choice.fits = best != nullptr;
  const Candidate& winner = best ? *best : *smallest;
  choice.plan = winner.plan;
  choice.seconds = winner.seconds;
  choice.memory = best ? best_memory : smallest_memory;
  if (best && (input.prefetch || input.recompute_units || input.strategy))
    choice.warning = slower_by_hand(model, mesh, input, machine, winner.seconds);
  if (best) {
    choice.why = "least predicted time of " + std::to_string(choice.candidates.size()) + " candidates, peak " +
                 format_bytes(winner.peak) + " at " + choice.memory.at_name;
  } else {
    choice.why = "nothing fits; this is the smallest of " + std::to_string(choice.candidates.size()) + " candidates";
    const MemoryParts& part = choice.memory.by_part;
    choice.advice = "the smallest plan needs " + format_bytes(winner.peak) + " a rank and plan.budget is " +
                    format_bytes(input.budget) + ": parameters " + format_bytes(part.parameters) + ", gradients " +
                    format_bytes(part.gradients) + ", optimiser states " + format_bytes(part.states) + ", slots " +
                    format_bytes(part.slots) + ", activations " + format_bytes(part.activations + part.temporaries);
  }
  return choice;
}

}  // namespace tessera::plan
