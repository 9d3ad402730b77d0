#pragma once
// The executor calls these during a training step, for what is not its own: data, objective, and what becomes of the
// step.
//
//   executor.train(schedule, step, {load, loss, control, agree}, optimiser);
#include <functional>
#include <optional>
#include <vector>

#include "tessera/net/model.h"
#include "tessera/net/unit_update.h"

namespace tessera::engine {

using at::Tensor;

/// What the training loop does at the instructions that belong to it.
struct StepCalls {
  /// Inputs of this rank's micro-batch (called only when it has samples), whole: the executor cuts out the tokens that
  /// are this rank's.
  std::function<net::Batch(int micro)> load;
  /// Gradient of the objective with respect to the prediction [T, C] of the tokens here (batch.tokens); books the loss.
  std::function<Tensor(const Tensor& prediction, const net::Batch& batch, int micro)> loss;
  /// This rank's values for the exchange at `norm`, at most kControlDoubles - 1.
  std::function<std::vector<double>()> control;
  /// Called with the gradient norm and all ranks' values: what to do with the updates; nothing skips them.
  std::function<std::optional<net::StepControl>(double grad_norm, const std::vector<std::vector<double>>& ranks)> agree;
  /// Where units are updated in their backward (plan::Update::in_backward): what their updates need, before the step.
  /// `agree` only hears of the step then.
  std::function<net::StepControl()> ahead = {};
};

}  // namespace tessera::engine
