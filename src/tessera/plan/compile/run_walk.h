#pragma once
// The order of a run: its steps and what comes between them. `plan --schedule` and the training loop walk the same.
//
//   RunWalk walk(shape, just_in_time);
//   while (const std::optional<Visit> visit = walk.next()) ...
#include <functional>
#include <optional>

#include "tessera/plan/compile/compile.h"

namespace tessera::plan {

/// One thing that a run does.
struct Visit {
  enum class Kind {
    train,      ///< an optimiser step
    updates,    ///< the updates that just-in-time steps have left pending
    swap,       ///< the next step's expert comes to the device
    sample,     ///< one pass of the sampler
    checkpoint  ///< shards are written
  };
  Kind kind = Kind::train;
  int64_t step = 0;
  bool pending = false;  ///< of a training step: updates of the step before are pending
};

class RunWalk {
 public:
  RunWalk(RunShape run, bool just_in_time);
  /// Nothing when the run is over.
  std::optional<Visit> next();
  /// Before the first step: samples of the step before it, which were not made when it was done.
  void make_up_samples();
  /// After a training step: pending updates and a checkpoint follow, then the run is over.
  void stop() { stopped_ = true; }

 private:
  void after_step();
  std::vector<Visit> sample_visits(int64_t step) const;
  bool has_samples(int64_t step) const;
  bool has_checkpoint(int64_t step) const;

  const RunShape run_;
  const bool just_in_time_;
  const int64_t last_;
  int64_t step_;
  bool pending_ = false, in_step_ = false, stopped_ = false;
  std::vector<Visit> follows_;  // what is left behind the step, the next one last
};

/// Calls `emit(step, schedule)` for everything one rank runs, in order.
void each_schedule(const RunShape& run, const RunSchedules& schedules,
                   const std::function<void(int64_t, const Schedule&)>& emit);

}  // namespace tessera::plan
