#include "tessera/plan/planner.h"

#include <algorithm>

#include "tessera/base/units.h"

namespace tessera::plan {

namespace {

/// Time of one step: compute, and what of the communication nothing hides. Without prefetch all of it is exposed;
/// with it, a transfer hides behind the compute of its neighbour.
double step_seconds(const ModelSpec& model, const Plan& plan, const Schedule& schedule, const Rates& rates) {
  double compute = 0, exposed = 0, before = 0;
  for (const Instruction& in : schedule.list) {
    double flops = 0;
    if (in.unit >= 0 && (in.op == Op::forward || in.op == Op::recompute))
      flops = model.units[in.unit].cost.forward_flops;
    if (in.unit >= 0 && in.op == Op::backward) flops = model.units[in.unit].cost.backward_flops;
    if (flops > 0) before = flops / rates.flops;
    compute += flops / rates.flops;
    double transfer = 0;
    for (const Comm& comm : in.comm) transfer += static_cast<double>(comm.bytes) / rates.link;
    // On a CPU the copies of a transfer take time from the cores that compute: a third of it is never hidden.
    exposed += plan.prefetch == 0 ? transfer : std::max(transfer - before, transfer / 3);
  }
  return compute + exposed;
}

/// The first `recompute` blocks recompute: they are needed last in backward, so what they would keep lives longest.
Plan make_plan(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, int prefetch, Strategy strategy,
               int recompute) {
  Plan plan;
  plan.mesh = mesh;
  plan.global_batch = input.global_batch;
  plan.micro_batch = input.micro_batch;
  plan.prefetch = prefetch;
  for (const auto& unit : model.units) {
    UnitPlan choice;
    choice.strategy = strategy;
    if (unit.kind == "block" && recompute > 0) choice.activations = Policy::recompute, --recompute;
    plan.units.push_back(choice);
  }
  return plan;
}

}  // namespace

Choice choose(const ModelSpec& model, const Mesh& mesh, const PlannerInput& input, const Rates& rates) {
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
        // Rank 0 never has fewer samples than another: its peak is the highest.
        int busiest = 0;
        for (int rank = 0; rank < mesh.world(); ++rank)
          if (c.plan.slice(mesh.dp_rank(rank), 0).count > c.plan.slice(mesh.dp_rank(busiest), 0).count) busiest = rank;
        const Schedule schedule = compile_train(model, c.plan, busiest);
        const MemoryCurve memory = memory_curve(model, c.plan, schedule, busiest);
        c.peak = memory.peak;
        c.fits = input.budget <= 0 || c.peak <= input.budget;
        c.seconds = step_seconds(model, c.plan, schedule, rates);
        c.why = c.fits ? "fits with " + format_bytes(input.budget > 0 ? input.budget - c.peak : 0) + " to spare"
                       : format_bytes(c.peak - input.budget) + " over the budget";
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
  choice.memory = best ? best_memory : smallest_memory;
  if (best) {
    choice.why = "least predicted time of " + std::to_string(choice.candidates.size()) + " candidates, peak " +
                 format_bytes(winner.peak) + " at " + choice.memory.at_name;
  } else {
    const MemoryParts& part = choice.memory.by_part;
    choice.advice = "the smallest plan needs " + format_bytes(winner.peak) + " a rank and plan.budget is " +
                    format_bytes(input.budget) + ": parameters " + format_bytes(part.parameters) + ", gradients " +
                    format_bytes(part.gradients) + ", optimiser states " + format_bytes(part.states) + ", slots " +
                    format_bytes(part.slots) + ", activations " + format_bytes(part.activations + part.temporaries) +
                    "; use more ranks (--mesh dp_shard=" + std::to_string(mesh.shard_size() * 2) +
                    "), a smaller train.micro_batch, or fewer frames";
  }
  return choice;
}

}  // namespace tessera::plan
