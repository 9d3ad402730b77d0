#pragma once
// The flow-matching objective over one rank's micro-batches: which samples, their noise and timestep, the loss and its
// gradient. All draws are keyed by (seed, step, place in the global batch), so layouts do not change them.
//
//   objective.begin(step, plan, dp_rank);
//   net::Batch batch = objective.load(micro);
//   Tensor gradient = objective.loss(prediction, batch, micro);
#include "tessera/diffusion/flow.h"
#include "tessera/net/model.h"
#include "tessera/plan/plan.h"
#include "tessera/train/recipe.h"
#include "tessera/train/stage_data.h"

namespace tessera::train {

class Objective {
 public:
  /// All of one part of the run; they outlive the objective.
  Objective(const Recipe& recipe, const net::Denoiser& model, const StageData& data);

  void begin(int64_t step, const plan::Plan& plan, int dp_rank);
  net::Batch load(int micro);
  /// Mean over the global batch of each sample's weighted mean squared error; returns its gradient [T, C].
  at::Tensor loss(const at::Tensor& prediction, const net::Batch& batch, int micro);

  double loss_sum() const { return loss_; }  ///< this rank's share of the step's mean loss
  int64_t bad_sample() const {
    return bad_sample_;
  }  ///< dataset index of the first sample whose loss is not finite; -1

 private:
  const Recipe& recipe_;
  const net::Denoiser& model_;
  const StageData& data_;
  diffusion::Options options_;
  const plan::Plan* plan_ = nullptr;
  int64_t step_ = 0;
  int dp_rank_ = 0;
  double loss_ = 0;
  int64_t bad_sample_ = -1;
  std::vector<at::Tensor> targets_;  // of the micro-batch in flight, in the prediction's layout
  std::vector<double> weights_;
  std::vector<int64_t> indices_;
};

/// Mean of squares of prediction - target over one sample's rows, and its gradient times `scale` in place of
/// prediction's copy: gradient[i] = 2 (prediction - target) * scale / n. Shared with `verify`.
double mean_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient);

}  // namespace tessera::train
