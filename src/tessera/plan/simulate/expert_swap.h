#pragma once
// Cost of an expert swap: parameters and states of the old and the new expert change places while the first step of the
// new expert already runs (engine/store/expert_swap.h).
//
//   const Prediction p = predict(spec, plan, machine);
//   const ExpertSwap swap = expert_swap(spec, plan, machine, p);
//   p.step.total + swap.waited;                       // of the first step after a swap
#include <map>

#include "tessera/plan/deal.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {

/// Of the rank that waits longest.
struct ExpertSwap {
  int64_t bytes = 0;   ///< moved in both directions: parameters and states that the active expert has on the device
  double seconds = 0;  ///< of the copies alone
  double waited = 0;   ///< the part that the step waits for; the rest overlaps compute
};

/// All zero with one expert or if inactive experts stay on the device. `predicted`: prediction of this plan. Parameters
/// arrive in the order of the units, then states; an instruction waits for the buffers it uses.
ExpertSwap expert_swap(const ModelSpec& model, const Plan& plan, const Machine& machine, const Prediction& predicted);

/// Bounds on the seconds of a step with a learned gate (docs/experts.md), which depend on its samples' choices.
struct GateSeconds {
  double alike = 0;      ///< all samples choose one expert
  double different = 0;  ///< the samples of each rank choose as many experts as possible
  int experts = 1;       ///< number of experts in that case
  /// The most that a step can take: the samples of a rank agree, and as many ranks as possible disagree. Then each of
  /// these experts takes as long as a whole step, in which the other ranks run dummy batches.
  double disagreeing = 0;
  int disagreeing_experts = 1;
};

/// `soft`: all experts evaluate each sample, so both bounds are equal; each expert runs an extra forward before
/// training.
GateSeconds gate_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine, bool soft);

/// Means over steps whose samples choose their experts independently of each other.
struct DealForecast {
  struct Way {
    double idle = 0, dummies = 0;  ///< StepUse::idle() and dummy_share()
    /// Passes of a step, by the samples of the rank that has the most of them.
    std::map<int64_t, double> passes = {};
  } dealt, undealt;
  double moved = 0;        ///< samples that change their rank
  double busiest = 0;      ///< those that the rank sends or receives that does most of it
  int64_t worst_sent = 0;  ///< the most that a rank sends in any step
};

/// `frequencies`: of the experts, with any sum above 0. `own`: samples of each dp rank. Drawn with fixed keys: the same
/// numbers give the same forecast.
DealForecast deal_forecast(const std::vector<double>& frequencies, const std::vector<int64_t>& own,
                           int64_t micro_batch);

/// The mean step behind a hard gate whose experts are chosen with given frequencies, with samples dealt to ranks and without.
struct GateMean {
  DealForecast forecast;
  int64_t sample_bytes = 0;
  double dealt = 0, undealt = 0;  ///< seconds of a step; the first with the deal itself
  /// Bytes and seconds of the rank with the most to send or receive, and of the rank that sends most in any step.
  double mean_bytes = 0, mean_seconds = 0;
  int64_t worst_bytes = 0;
  double worst_seconds = 0;
};

/// `own`: samples of each dp rank. `sample_bytes`: of a sample's message, and 8 that say its length.
GateMean gate_mean(const ModelSpec& model, const Plan& plan, const Machine& machine,
                   const std::vector<double>& frequencies, const std::vector<int64_t>& own, int64_t sample_bytes);

}  // namespace tessera::plan
