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

}  // namespace tessera::plan
