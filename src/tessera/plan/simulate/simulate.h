#pragma once
// Runs lists of instructions on lanes, with their waits, by the clock of a cost model: when each begins and ends.
//
//   Timeline timeline = simulate({{.tasks = tasks}}, {.steal = 0.06});
//   timeline.seconds; timeline.ranks[0].spans[i].end; timeline.ranks[0].share(Share::comm);
//
// [Note: simulation]
// Instructions of a lane run in order, each after what it waits for. Phases that share a resource at the same time get
// equal parts of it (a gather and a reduction on one link); while a transfer runs, compute goes at 1 - steal. The n-th
// collective of a communicator starts when the last rank that uses it has come. Ranks that are alike are simulated
// once.
//
// Every moment of a rank's step belongs to one share, so that shares add up to the step: what its compute lane does,
// else (it stands still) what it waits for. What stealing takes from compute counts as exposed communication; waiting
// for another stage to come to an exchange is the bubble of the pipeline.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/simulate/cost.h"

namespace tessera::plan {

struct Task {
  int lane = 0;
  std::vector<int> wait;       ///< indices into the same list
  std::vector<Phase> phases;   ///< one after the other; none: done when it starts
  std::string meet;            ///< communicator of the phases that meet: the n-th use by each rank is one collective
  bool across_stages = false;  ///< it has members in several stages of a pipeline
};

struct RankTasks {
  std::vector<Task> tasks;
};

struct Span {
  double begin = 0, end = 0;  ///< seconds from the start of the step
};

struct RankTimeline {
  std::vector<Span> spans;  ///< one a task
  double seconds = 0;       ///< when its last task ends
  std::array<double, kShares> shares = {};
  std::array<double, kResources> busy = {};  ///< seconds each resource had work
  double share(Share s) const { return shares[static_cast<int>(s)]; }
};

struct Timeline {
  double seconds = 0;  ///< of the slowest rank
  int slowest = 0;     ///< index into `ranks`
  std::vector<RankTimeline> ranks;
};

struct SimulateOptions {
  int compute_lane = static_cast<int>(Lane::compute);
  double steal = 0;  ///< share of compute that a running transfer takes
};

/// Throws InternalError naming the tasks that wait for each other when the lists cannot come to their end.
Timeline simulate(const std::vector<RankTasks>& ranks, const SimulateOptions& options);

}  // namespace tessera::plan
