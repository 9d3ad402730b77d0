#pragma once
// A training step in two halves: up to the exchange that tells every rank the gradient norm and what the others report,
// and the rest, once all have decided alike what becomes of it.
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

/// What is run of a step: all of it, or what one of several experts has of it.
struct Pass {
  plan::ProgramPtr program;
  int64_t step = 0;   ///< of the run
  size_t expert = 0;  ///< whose shards the store is about
  /// Where units are updated in their backward (plan::Update::in_backward): what their updates need.
  std::optional<net::StepControl> ahead = {};
};

/// This rank's numbers for the exchange at `norm`, at most plan::kControlDoubles - 1. Called after Objective::read.
using Report = std::function<std::vector<double>()>;

class StepRun {
 public:
  double norm() const { return norm_; }  ///< of all gradients as they are, the loss scale in them
  /// By rank, what each reported.
  const std::vector<std::vector<double>>& ranks() const { return ranks_; }

 private:
  friend class Executor;
  double norm_ = 0;
  std::vector<std::vector<double>> ranks_;
  std::shared_ptr<ScheduleRun> rest_;
};

}  // namespace tessera::engine
