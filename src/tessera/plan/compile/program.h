#pragma once
// A plan compiled for one rank, as the engine runs it: immutable and shared, so that a stage or a rebalance makes new
// programs and nothing changes under one that runs.
//
//   const Programs programs(plan, compile_all(spec, plan, rank, passes));
//   engine.use(programs);
//   engine.run({.program = programs.train}, objective, report);
#include <memory>

#include "tessera/plan/compile/compile.h"

namespace tessera::plan {

struct Program {
  Plan plan;
  Schedule schedule;
  int norm = -1;  ///< the instruction whose exchange ends the first half of a training step; -1: there is none

  Program(Plan plan, Schedule schedule);
};
using ProgramPtr = std::shared_ptr<const Program>;

/// All that one rank runs of a part of a run. Null where a program has no instructions.
struct Programs {
  ProgramPtr train, sample, checkpoint;
  ProgramPtr first, updates;  ///< as in RunSchedules
  int64_t arena = 0;          ///< device bytes of the largest that runs

  Programs() = default;
  /// `samples`: the run has some.
  Programs(const Plan& plan, RunSchedules schedules, bool samples);
  bool just_in_time() const { return updates != nullptr; }
  /// Of a step that finds updates of the step before pending, or none.
  const ProgramPtr& step(bool pending) const { return just_in_time() && !pending ? first : train; }
};

}  // namespace tessera::plan
