#pragma once
// Compiles a plan into the schedules of one rank.
//
//   Schedule step = compile_train(spec, plan, rank);
//   RunSchedules all = compile_all(spec, plan, rank, passes);           // run_walk.h has their order
//   const Programs programs(plan, std::move(all), /*samples=*/true);
//   engine.run({.program = programs.train}, objective, report);
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "tessera/plan/schedule.h"
#include "tessera/plan/shares.h"

namespace tessera::plan {

/// One optimiser step: all micro-batches, reductions, norm and updates. `rank` determines the dummy batches. With
/// just-in-time updates the step begins with the deferred updates of the previous step; `pending` = false leaves them
/// out.
Schedule compile_train(const ModelSpec& model, const Plan& plan, int rank, bool pending = true,
                       CompiledFor compiled_for = CompiledFor::run);
/// The plan of a pass whose parameters stay as they are: a pipeline has no gradients of weights to defer.
Plan frozen_pass(Plan plan);
/// All micro-batches of a step forward and backward through parameters that stay as they are, for the gradients of the inputs,
/// by frozen_pass(plan). `model`: measured for a caller that asks for these.
Schedule compile_frozen(const ModelSpec& model, const Plan& plan, int rank, std::string phase);
/// What ranks exchange at a step's norm, of a step that trains nothing of the plan's.
Schedule compile_exchange(const ModelSpec& model, const Plan& plan, int rank);
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
  int64_t eval_every = 0;            ///< held-out loss, before the first step too; 0: never
  int eval_passes = 0;               ///< forward passes of it
  AskBase base = AskBase::none;      ///< what runs forward without adapters before each training step
  AskBase unguided = AskBase::none;  ///< and without captions
  /// Before each training step a frozen teacher predicts each micro-batch, twice where it is guided, and then the student in
  /// forward mode.
  int teacher_passes = 0;
  /// Heads on the teacher's blocks judge what the student predicts of the second sample of each pair: in one step they tell the
  /// student, in the next they learn, from one batch of its predictions and one of pictures; or from two of the former.
  bool judges = false, misaligned = false;
  std::set<int64_t> skipped = {};  ///< steps whose update was left out: the same network has the next one
  /// Of a judged student: they and it take turns, it first.
  bool heads_learn(int64_t step) const {
    const auto before = static_cast<int64_t>(std::distance(skipped.begin(), skipped.lower_bound(step)));
    return judges && (step - 1 - before) % 2 == 1;
  }
  bool distils() const { return teacher_passes > 0; }
  /// Passes of a student, its critic and its teacher over each micro-batch before a training step, of whole clips and of the
  /// `chunks` in which the student makes them; empty: none of these.
  struct Passes {
    int of_clips = 0, of_chunks = 0;
    int all() const { return of_clips + of_chunks; }
  };
  std::function<Passes(int64_t step)> passes_of = {};
  int chunks = 1;
  bool matches() const { return passes_of != nullptr; }
  int own_teacher = 0;  ///< the last so many of them in a step of the student are of a teacher with a plan of its own
  int passes_by_teacher(int64_t step) const { return own_teacher > 0 && expert_of(step) == 0 ? own_teacher : 0; }
  int passes_by_plan(int64_t step) const { return (matches() ? passes_of(step).all() : 1) - passes_by_teacher(step); }
  bool asks() const { return base != AskBase::none || unguided != AskBase::none || distils() || matches(); }
  bool forwards() const { return sample_every > 0 || eval_every > 0; }  ///< whether it runs what runs forward alone
  /// The expert that trains a step; empty if there is one denoiser, or if a gate decides.
  std::function<int(int64_t step)> expert_of = {};
  /// Whether another expert trains the step after this one, and is the first of it to be needed.
  bool swaps_expert(int64_t step) const {
    return expert_of && !matches() && step < steps && expert_of(step + 1) != expert_of(step);
  }
};
/// A plan compiled for one rank, as the engine runs it. Programs are immutable and shared: a new stage or a rebalance
/// makes new programs, so a running program never changes.
struct Program {
  Plan plan;
  Schedule schedule;
  int norm = -1;  ///< the instruction whose exchange ends the first half of a training step; -1: none

  Program(Plan plan, Schedule schedule);
};
using ProgramPtr = std::shared_ptr<const Program>;

inline bool has_instructions(const Schedule& schedule) { return !schedule.list.empty(); }
inline bool has_instructions(const ProgramPtr& program) { return program != nullptr; }

/// What one rank runs in a part of a run, as schedules or as programs.
template <class T>
struct AllOf {
  T train, sample, checkpoint;
  T base;     ///< a pass over a micro-batch, of whose result targets are made; empty where none is asked for
  T tangent;  ///< the same in forward mode
  T teacher;  ///< of a teacher of other sizes, by its own plan
  /// Of heads on a frozen network: what its blocks return of a micro-batch; all of a step's, forward and backward to its inputs;
  /// and the exchange of a step in which the heads alone learn.
  T features, judged, exchange;
  /// With just-in-time updates: a step without deferred updates before it, and the deferred updates alone. Otherwise
  /// empty and never run.
  T first, updates;
  struct Own {
    T train, first, updates;
  };
  std::map<int, Own> of_expert = {};  ///< of experts whose units are planned differently (Plan::of_expert)

  bool just_in_time() const { return has_instructions(updates); }
  /// A training step of `expert`, with or without deferred updates of the step before.
  const T& step(bool pending, int expert = 0) const {
    const bool whole = !just_in_time() || pending;
    if (const auto own = of_expert.find(expert); own != of_expert.end())
      return whole ? own->second.train : own->second.first;
    return whole ? train : first;
  }
  /// Those that a step of `expert` deferred.
  const T& updates_of(int expert) const {
    const auto own = of_expert.find(expert);
    return own != of_expert.end() ? own->second.updates : updates;
  }
};

struct RunSchedules : AllOf<Schedule> {
  /// The largest arena of any schedule, on the device and on the host. `samples`: the run has samples.
  int64_t arena(bool samples) const { return most(&Schedule::arena, samples); }
  int64_t host_arena(bool samples) const { return most(&Schedule::host_arena, samples); }
  int64_t disk_arena() const { return std::max(train.disk_arena, first.disk_arena); }
  Plan of_teacher = {};  ///< the plan of `teacher`

 private:
  int64_t most(int64_t Schedule::*bytes, bool samples) const;
};
/// Null if a program has no instructions.
struct Programs : AllOf<ProgramPtr> {
  int64_t arena = 0;       ///< device bytes of the largest arena
  int64_t host_arena = 0;  ///< likewise of the host tier

  Programs() = default;
  /// `samples`: the run has samples.
  Programs(const Plan& plan, RunSchedules schedules, bool samples);
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
