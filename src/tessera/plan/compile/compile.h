#pragma once
// Compiles a plan into the schedules of one rank.
//
//   Schedule step = compile_train(spec, plan, rank);
//   RunSchedules all = compile_all(spec, plan, rank, passes);           // run_walk.h has their order
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// One optimiser step: all micro-batches, reductions, norm and updates. `rank` determines the dummy batches. With
/// just-in-time updates the step begins with the deferred updates of the previous step; `pending` = false leaves them
/// out.
Schedule compile_train(const ModelSpec& model, const Plan& plan, int rank, bool pending = true,
                       CompiledFor compiled_for = CompiledFor::run);
/// The updates that a step deferred.
Schedule compile_updates(const ModelSpec& model, const Plan& plan, int rank);
/// Forward only, `micros` passes in a row (a step of the sampler runs one pass for each guidance branch).
Schedule compile_forward(const ModelSpec& model, const Plan& plan, int rank, std::string phase, int micros);
/// Write shards, wait for all ranks, commit.
Schedule compile_checkpoint(const ModelSpec& model, const Plan& plan, int rank);

/// The whole run as data. Samples and checkpoints after a step count as that step; the last step is always sampled (if
/// samples are enabled) and checkpointed.
struct RunShape {
  int64_t steps = 0, first_step = 1;
  int64_t last_step = 0;         ///< of this part of the run (a stage); 0: steps
  int64_t checkpoint_every = 0;  ///< 0: only after the last step
  int64_t sample_every = 0;      ///< 0: never
  int sample_prompts = 0, sample_steps = 0;
  int64_t eval_every = 0;  ///< held-out loss, before the first step too; 0: never
  int eval_passes = 0;     ///< forward passes of it
  bool forwards() const { return sample_every > 0 || eval_every > 0; }  ///< whether it runs what runs forward alone
  /// The expert that trains a step; empty if there is one denoiser, or if a gate decides.
  std::function<int(int64_t step)> expert_of = {};
  /// Whether another expert trains the step after this one.
  bool swaps_expert(int64_t step) const { return expert_of && step < steps && expert_of(step + 1) != expert_of(step); }
};
/// The schedules of an expert whose units are planned differently (Plan::of_expert).
struct ExpertSchedules {
  Schedule train, first, updates;
};
struct RunSchedules {
  Schedule train, sample, checkpoint;
  /// With just-in-time updates: a step without deferred updates before it, and the deferred updates alone. Otherwise
  /// empty and never run.
  Schedule first, updates;
  std::map<int, ExpertSchedules> of_expert = {};
  bool just_in_time() const { return !updates.list.empty(); }
  /// The largest arena of any schedule, on the device and on the host. `samples`: the run has samples.
  int64_t arena(bool samples) const;
  int64_t host_arena(bool samples) const;
  int64_t disk_arena() const { return std::max(train.disk_arena, first.disk_arena); }
  /// What runs in a training step of `expert`, with or without deferred updates of the step before.
  const Schedule& step(int expert, bool pending) const;
  const Schedule& updates_of(int expert) const;  ///< those that a step of `expert` deferred
};
/// All schedules of a rank; `passes` forward passes make one step of the sampler.
RunSchedules compile_all(const ModelSpec& model, const Plan& plan, int rank, int passes);
/// Bytes of the arenas of a schedule.
struct ArenaBytes {
  int64_t device = 0, host = 0;
  bool operator==(const ArenaBytes&) const = default;
  ArenaBytes covering(const ArenaBytes& other) const {
    return {std::max(device, other.device), std::max(host, other.host)};
  }
};

/// Those of a step with no deferred updates before it, and of these updates alone: as compile_train and compile_updates have them,
/// without ordering their instructions any further.
ArenaBytes arenas_without_pending(const ModelSpec& model, const Plan& plan, int rank);

}  // namespace tessera::plan
