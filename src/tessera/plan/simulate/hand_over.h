#pragma once
// What it takes that another expert has the next step: what of the two rests apart changes places, behind the step that
// needs it (engine/store/store_experts.cpp).
//
//   const Prediction p = predict(spec, plan, machine);
//   const HandOver moved = hand_over(spec, plan, machine, p);
//   p.step.total + moved.waited;                      // of a step that begins another expert's turn
#include "tessera/plan/simulate/predict.h"

namespace tessera::plan {

/// Of the rank that waits longest.
struct HandOver {
  int64_t bytes = 0;   ///< moved, both ways: of parameters and states that rest on the device in an expert's turn
  double seconds = 0;  ///< of moving them, were nothing else going on
  double waited = 0;   ///< what of that the step waits for: the rest goes on behind it
};

/// All zero where there is one expert, or where the idle ones rest on the device. `predicted`: of this plan.
/// Parameters come in the order of the units, then states; an instruction that is ahead of what it uses waits.
HandOver hand_over(const ModelSpec& model, const Plan& plan, const Machine& machine, const Prediction& predicted);

/// Seconds of a step with a learned gate (docs/experts.md), whatever its samples choose.
struct GateSeconds {
  double alike = 0;      ///< all samples choose one expert
  double different = 0;  ///< they spread over as many experts as they can
  int experts = 1;       ///< how many that are
};

/// `soft`: all experts answer each sample, so both ends are one; before they learn each predicts once more.
GateSeconds gate_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine, bool soft);

}  // namespace tessera::plan
