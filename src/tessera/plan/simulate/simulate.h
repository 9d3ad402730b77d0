#pragma once
// Simulates lists of instructions on lanes with their waits under a cost model: when each begins and ends.
//
//   Timeline timeline = simulate({{.tasks = tasks}}, {.steal = 0.06});
//   timeline.seconds; timeline.ranks[0].spans[i].end; timeline.ranks[0].share(Share::comm);
//
// [Note: simulation]
// Instructions of a lane run in order, each after its waits. Concurrent phases on one resource get equal parts of it (a
// gather and a reduction on one link); during a transfer compute runs at rate 1 - steal and the transfer at `beside`. The
// n-th collective of a communicator starts when its last member arrives. Identical ranks are simulated once. Copies run at
// `copy_beside` while the rank computes, and at `both_ways` while one goes the other way.
//
// [Note: processors in common]
// Where each lane's thread runs on the processor that computes (SimulateOptions::shared_processor), a transfer or copy beside compute
// has the rate that was measured for it and takes what it was measured to take (`beside` and `steal`, `copy_beside` and
// `copy_steal`). Several of them together leave compute what a fair scheduler does: as much as each of them gets. Where nothing
// computes they share the processor evenly.
//
// Every moment of a rank's step counts as exactly one share, so the shares sum to the step time: the share of what the
// compute lane does or, if it is stalled, of what it waits for. Compute lost to `steal` counts as exposed
// communication; waiting for another stage to reach an exchange is the pipeline bubble.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/simulate/cost.h"

namespace tessera::plan {

struct Task {
  int lane = 0;
  Waits wait;                 ///< indices into the same list
  std::vector<Phase> phases;  ///< in order; empty: done when it starts
  /// Communicator of its collective phases; the n-th use by each rank is the same collective.
  std::string communicator;
  bool across_stages = false;  ///< the communicator has members in several pipeline stages
};

struct RankTasks {
  std::vector<Task> tasks;
};

struct Span {
  double begin = 0, end = 0;  ///< seconds from the start of the step
};

struct RankTimeline {
  std::vector<Span> spans;  ///< one for each task
  double seconds = 0;       ///< end of its last task
  std::array<double, kShares> shares = {};
  std::array<double, kResources> busy = {};  ///< seconds in which each resource was busy
  double share(Share s) const { return shares[static_cast<int>(s)]; }
};

struct Timeline {
  double seconds = 0;  ///< of the slowest rank
  int slowest = 0;     ///< index into `ranks`
  std::vector<RankTimeline> ranks;
};

struct SimulateOptions {
  int compute_lane = static_cast<int>(Lane::compute);
  double steal = 0;               ///< share of compute lost during a transfer
  double copy_steal = 0;          ///< likewise during a copy
  double beside = 1;              ///< rate of a transfer while the rank computes
  double copy_beside = 0;         ///< rate of a copy while the rank computes; 0: compute does not slow it down
  double both_ways = 1;           ///< rate of a copy while one goes the other way
  bool shared_processor = false;  ///< with copy_beside: [Note: processors in common]
  double wake = 0;  ///< seconds from the end of a task to the begin of one that waits for it on another lane
};

/// Throws InternalError naming the waiting tasks if the lists deadlock.
Timeline simulate(const std::vector<RankTasks>& ranks, const SimulateOptions& options);

}  // namespace tessera::plan
