#pragma once
// A training step in two halves: up to the exchange of the gradient norm and of the ranks' reports, and, once every
// rank has taken the same decision from them, the updates.
//
//   StepRun step = engine.run(pass, objective, report);
//   engine.finish(std::move(step), decide(step.norm(), step.ranks()));
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/net/objective.h"
#include "tessera/net/unit_update.h"
#include "tessera/plan/compile/program.h"

namespace tessera::engine {

struct ScheduleRun;  // executor_run.h

/// A pass of a step: the whole step, or the part that one of several experts trains.
struct Pass {
  plan::ProgramPtr program;
  int64_t step = 0;   ///< of the run
  size_t expert = 0;  ///< the active expert
  /// The control of updates in the backward (plan::Update::in_backward).
  std::optional<net::StepControl> ahead = {};
};

/// This rank's numbers for the exchange at `norm`, at most plan::kControlDoubles - 1. Called after Objective::read.
using Report = std::function<std::vector<double>()>;

class StepRun {
 public:
  double norm() const { return norm_; }  ///< of all gradients, which still have the loss scale
  /// The report of each rank.
  const std::vector<std::vector<double>>& ranks() const { return ranks_; }

 private:
  friend class Executor;
  double norm_ = 0;
  std::vector<std::vector<double>> ranks_;
  std::shared_ptr<ScheduleRun> rest_;
};

}  // namespace tessera::engine
