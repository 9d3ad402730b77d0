#pragma once
// Predicts one training step: its time on all ranks and the timeline of each, from a compiled, costed and simulated
// plan.
//
//   Prediction p = predict(spec, plan, machine);
//   p.step.total; p.step.exposed_comm; p.groups[0].spans[i].begin;
//
// Ranks with the same stages and the same micro-batch sizes run the same schedule. They form one group, which is
// compiled and simulated once.
#include <array>
#include <map>

#include "tessera/plan/deal.h"
#include "tessera/plan/simulate/simulate.h"

namespace tessera::plan {

/// Seconds of the rank that ends last; the parts sum to `total`.
struct StepSeconds {
  double total = 0, compute = 0, exposed_comm = 0, exposed_copy = 0, optimizer = 0;
  double bubble = 0;    ///< waiting for other pipeline stages
  double encoders = 0;  ///< Machine::beside, but for what is hidden behind the step
  double base = 0;      ///< passes of whose results targets are made (RunShape::asks)
};

/// Ranks with identical schedules.
struct RankGroup {
  int rank = 0;   ///< the first rank of the group
  int ranks = 1;  ///< number of ranks
  Schedule schedule;
  std::vector<Span> spans;  ///< by instruction
  double busy_link = 0;     ///< seconds of collectives, overlapped or not
  double busy_copy = 0;     ///< seconds of copies between device and host, overlapped or not
};

struct Prediction {
  StepSeconds step;
  int slowest = 0;  ///< index of the group that ends last
  std::vector<RankGroup> groups;
  /// Model FLOP/s of one rank (forward and backward, without recompute).
  double flops_per_second = 0;
};

/// What the schedules of ranks differ in: the stage, and the number of samples of a step.
std::array<int64_t, 2> rank_kind(const Plan& plan, int rank);
/// Groups of identical ranks with the schedule of the first.
std::vector<RankGroup> rank_groups(const ModelSpec& model, const Plan& plan,
                                   CompiledFor compiled_for = CompiledFor::run);
/// `groups`: the result of rank_groups, if already computed. `repeated`: so many further micro-batches, like the second of
/// `plan`, have a part in the times of the step; plan must have three or more, and one pipeline stage.
Prediction predict(const ModelSpec& model, const Plan& plan, const Machine& machine, std::vector<RankGroup> groups = {},
                   int64_t repeated = 0);

/// Seconds of a pass without a backward over a micro-batch.
double forward_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine);

/// The instructions with their costs, as input of the simulator. [Note: handed over in turn] On a CPU the thread that computes
/// hands the other lanes their instructions as it comes to them in the list, so none begins before the compute before it has
/// ended. The shipped profile `cpu` does not count that, a profile with times of the engine does.
RankTasks tasks_of(const Schedule& schedule, const CostModel& cost, int rank);

// Cost of an expert swap: parameters and states of the old and the new expert change places while the first step of the
// new expert already runs (engine/store/expert_swap.h).
//
//   const Prediction p = predict(spec, plan, machine);
//   const ExpertSwap swap = expert_swap(spec, plan, machine, p);
//   p.step.total + swap.waited;                       // of the first step after a swap

/// Of the rank that waits longest.
struct ExpertSwap {
  int64_t bytes = 0;   ///< moved in both directions: parameters and states that the active expert has on the device
  double seconds = 0;  ///< of the copies alone
  double waited = 0;   ///< the part that the step waits for; the rest overlaps compute
};

/// All zero with one expert or if inactive experts stay on the device. `predicted`: prediction of this plan. Parameters
/// arrive in the order of the units, then states; an instruction waits for the buffers it uses.
ExpertSwap expert_swap(const ModelSpec& model, const Plan& plan, const Machine& machine, const Prediction& predicted);

/// Bounds on the seconds of a step with a learned gate (docs/experts.md), which depend on its samples' choices.
struct GateSeconds {
  double alike = 0;      ///< all samples choose one expert
  double different = 0;  ///< the samples of each rank choose as many experts as possible
  int experts = 1;       ///< number of experts in that case
  /// The most that a step can take: the samples of a rank agree, and as many ranks as possible disagree. Then each of
  /// these experts takes as long as a whole step, in which the other ranks run dummy batches.
  double disagreeing = 0;
  int disagreeing_experts = 1;
};

/// `soft`: all experts evaluate each sample, so both bounds are equal; each expert runs an extra forward before
/// training.
GateSeconds gate_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine, bool soft);

/// Means over steps whose samples choose their experts independently of each other.
struct DealForecast {
  struct Way {
    double idle = 0, dummies = 0;  ///< StepUse::idle() and dummy_share()
    /// Passes of each expert in a step, by the samples of the rank that has the most of them.
    std::vector<std::map<int64_t, double>> passes = {};
  } dealt, undealt;
  double moved = 0;        ///< samples that change their rank
  double pairs = 0;        ///< of experts in a step whose passes run side by side
  double busiest = 0;      ///< those that the rank sends or receives that does most of it
  int64_t worst_sent = 0;  ///< the most that a rank sends in any step
};

/// `frequencies`: of the experts, with any sum above 0. `own`: samples of each dp rank. `micro_batches`: see step_use(). Drawn
/// with fixed keys: the same numbers give the same forecast. `together`: dealt samples of pairs of experts run side by side.
DealForecast deal_forecast(const std::vector<double>& frequencies, const std::vector<int64_t>& own,
                           const std::vector<int64_t>& micro_batches, bool together = false);

/// A plan by which an expert's passes may run: with the buffers of the others, and micro-batches and activations of its own.
struct PassPlan {
  Plan plan;
  std::vector<double> seconds;  ///< [n - 1]: of a pass in which the fullest rank has n samples
};
/// Those seconds, up to `most` samples.
std::vector<double> pass_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine, int64_t most);
/// Seconds that a step spends in an expert's passes.
double seconds_of(const PassPlan& plan, const std::map<int64_t, double>& passes);
/// For each expert the plan under which a step spends the fewest seconds in its passes; of one that no step chooses, the
/// fewest for a single sample. The first plan where another is hardly faster.
std::vector<size_t> plans_by_use(const std::vector<PassPlan>& plans, const DealForecast::Way& use);

/// The mean step behind a hard gate whose experts are chosen with given frequencies, with samples dealt to ranks and without.
struct GateMean {
  DealForecast forecast;
  int64_t sample_bytes = 0;
  double dealt = 0, undealt = 0;  ///< seconds of a step, all experts under one plan; the first with the deal itself
  /// Bytes and seconds of the rank with the most to send or receive, and of the rank that sends most in any step.
  double mean_bytes = 0, mean_seconds = 0;
  int64_t worst_bytes = 0;
  double worst_seconds = 0;
};

/// `own`: samples of each dp rank. `sample_bytes`: of a sample's message, and 8 that say its length. Passes run side by side
/// where the plan has them do (Plan::together).
GateMean gate_mean(const ModelSpec& model, const Plan& plan, const Machine& machine,
                   const std::vector<double>& frequencies, const std::vector<int64_t>& own, int64_t sample_bytes);
/// Seconds that two passes side by side save, each with a sample on half of the dp ranks: the simulated time of both lists, and
/// of both as one. At least 0.
double saved_side_by_side(const ModelSpec& model, const Plan& plan, const Machine& machine);

}  // namespace tessera::plan
