#pragma once
// A plan compiled for one rank, as the engine runs it. Programs are immutable and shared: a new stage or a rebalance
// makes new programs, so a running program never changes.
//
//   const Programs programs(plan, compile_all(spec, plan, rank, passes));
//   engine.use(programs);
//   engine.run({.program = programs.train}, objective, report);
#include <map>
#include <memory>

#include "tessera/plan/compile/compile.h"

namespace tessera::plan {

struct Program {
  Plan plan;
  Schedule schedule;
  int norm = -1;  ///< the instruction whose exchange ends the first half of a training step; -1: none

  Program(Plan plan, Schedule schedule);
};
using ProgramPtr = std::shared_ptr<const Program>;

/// All programs of one rank for one stage of a run. Null if a program has no instructions.
struct Programs {
  ProgramPtr train, sample, checkpoint;
  ProgramPtr first, updates;  ///< as in RunSchedules
  int64_t arena = 0;          ///< device bytes of the largest arena
  int64_t host_arena = 0;     ///< likewise of the host tier
  struct Own {
    ProgramPtr train, first, updates;
  };
  std::map<int, Own> of_expert;  ///< as in RunSchedules

  Programs() = default;
  /// `samples`: the run has samples.
  Programs(const Plan& plan, RunSchedules schedules, bool samples);
  bool just_in_time() const { return updates != nullptr; }
  /// The program of a step with or without deferred updates of the previous step.
  const ProgramPtr& step(bool pending, int expert = 0) const;
  const ProgramPtr& updates_of(int expert) const;  ///< those that a step of `expert` deferred
};

}  // namespace tessera::plan
