#pragma once
// The order of a run: its steps and what runs between them. `plan --schedule` and the training loop use the same walk.
//
//   RunWalk walk(shape, just_in_time);
//   while (const std::optional<Visit> visit = walk.next()) ...
#include <functional>
#include <optional>

#include "tessera/plan/compile/compile.h"

namespace tessera::plan {

/// One entry of a run.
struct Visit {
  enum class Kind {
    train,      ///< an optimiser step
    updates,    ///< the deferred updates of just-in-time steps
    swap,       ///< swap: load the next step's expert to the device
    evaluate,   ///< one pass of the held-out loss
    sample,     ///< one pass of the sampler
    checkpoint  ///< write shards
  };
  Kind kind = Kind::train;
  int64_t step = 0;
  bool pending = false;  ///< of a training step: the previous step deferred its updates
};

class RunWalk {
 public:
  RunWalk(RunShape run, bool just_in_time);
  /// Empty at the end of the run.
  std::optional<Visit> next();
  /// Before the first step: samples of the previous step that are missing.
  void make_up_samples();
  /// Before the first step: the held-out loss of the previous one.
  void make_up_evaluation();
  /// Ends the run after this training step, its deferred updates and a checkpoint.
  void stop() { stopped_ = true; }
  /// A checkpoint behind this training step and its deferred updates, beside those of the run's shape.
  void save() { save_asked_ = true; }

 private:
  void after_step();
  std::vector<Visit> sample_visits(int64_t step) const;
  bool has_samples(int64_t step) const;
  bool has_evaluation(int64_t step) const;
  bool has_checkpoint(int64_t step) const;

  const RunShape run_;
  const bool just_in_time_;
  const int64_t last_;
  int64_t step_;
  bool pending_ = false, in_step_ = false, stopped_ = false, save_asked_ = false;
  std::vector<Visit> follows_;  // entries after the current step, next one last
};

/// How many passes of each kind are before a training step.
struct PassesBefore {
  int64_t base = 0;    ///< of RunSchedules::base, with those in forward mode between them; of a run that matches(), so
                       ///< many times RunShape::passes_of
  int64_t second = 0;  ///< of a student that heads judge: over the second samples of pairs
};
PassesBefore passes_before(const RunShape& run, const Plan& plan);
/// Calls `emit(step, schedule)` for everything one rank runs, in order; no step of those that heads have in turn is skipped.
void each_schedule(const RunShape& run, const RunSchedules& schedules,
                   const std::function<void(int64_t, const Schedule&)>& emit, const PassesBefore& before = {});

}  // namespace tessera::plan
