#pragma once
// The time of one training step on all ranks, and what each rank does when: a plan, compiled, costed and simulated.
//
//   Prediction p = predict(spec, plan, machine);
//   p.step.total; p.step.exposed_comm; p.groups[0].spans[i].begin;
//
// Ranks of the same stages whose micro-batches have the same sizes run the same list: they are one group, compiled and
// simulated once.
#include "tessera/plan/simulate/simulate.h"

namespace tessera::plan {

/// Seconds; the parts add up to `total`, by the rank that ends last.
struct StepSeconds {
  double total = 0, compute = 0, exposed_comm = 0, exposed_copy = 0, optimizer = 0;
  double bubble = 0;  ///< waiting for other stages of a pipeline
};

/// Ranks that are alike.
struct RankGroup {
  int rank = 0;   ///< the first of them
  int ranks = 1;  ///< how many
  Schedule schedule;
  std::vector<Span> spans;  ///< of each instruction
  double busy_link = 0;     ///< seconds of collectives, hidden or not
  double busy_copy = 0;     ///< seconds of copies to and from the host
};

struct Prediction {
  StepSeconds step;
  int slowest = 0;  ///< group that ends last
  std::vector<RankGroup> groups;
  /// Model FLOPs of one step (forward and backward, without recompute) by second and rank.
  double flops_per_second = 0;
};

/// Groups of alike ranks with the schedule of the first.
std::vector<RankGroup> rank_groups(const ModelSpec& model, const Plan& plan);
/// `groups`: as rank_groups gives them, when they are at hand already.
Prediction predict(const ModelSpec& model, const Plan& plan, const Machine& machine,
                   std::vector<RankGroup> groups = {});

/// The lists with their costs, as the simulator takes them.
RankTasks tasks_of(const Schedule& schedule, const CostModel& cost, int rank);

}  // namespace tessera::plan
