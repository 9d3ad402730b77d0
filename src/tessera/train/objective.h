#pragma once
// The flow-matching objective over one rank's micro-batches: which samples, their noise and timestep, the loss and its
// gradient. All draws are keyed by (seed, step, place in the global batch), so layouts do not change them.
//
//   objective.begin(step, plan, rank);
//   net::Batch batch = objective.load(micro);
//   Tensor gradient = objective.loss(prediction, batch, micro);
#include <map>

#include "tessera/diffusion/flow.h"
#include "tessera/net/model.h"
#include "tessera/plan/plan.h"
#include "tessera/train/recipe.h"
#include "tessera/train/stage_data.h"

namespace tessera::train {

/// What a sample's prediction is held against: rows [.., C] in its layout, from its token `first` on.
struct Target {
  at::Tensor rows;
  int64_t first = 0;
};

class Objective {
 public:
  /// All of one part of the run; they outlive the objective. `options`: how timesteps are drawn.
  Objective(const Recipe& recipe, const net::Denoiser& model, const StageData& data, const diffusion::Options& options);

  /// `step` keys the draws: of several experts each counts its own.
  void begin(int64_t step, const plan::Plan& plan, int rank);
  /// The whole micro-batch, whoever shares it; of the targets the rows that are this rank's stay here, and none where
  /// another pipeline stage has the loss.
  net::Batch load(int micro);
  /// Mean over the global batch of each sample's weighted mean squared error; returns its gradient [T, C]. Where ranks
  /// share a sample, each has the part of its own tokens, in the prediction as in the sum.
  at::Tensor loss(const at::Tensor& prediction, const net::Batch& batch, int micro);

  /// What gradients, not losses, are multiplied by from now on (optim/grad_scaler.h).
  void scale_gradients(double scale) { gradient_scale_ = scale; }

  double loss_sum() const { return loss_; }  ///< this rank's share of the step's mean loss
  int64_t bad_sample() const {
    return bad_sample_;
  }  ///< dataset index of the first sample whose loss is not finite; -1

 private:
  bool begins_clean(int64_t place, const at::Tensor& latent) const;
  void cut_targets(std::vector<Target>& targets, const net::Tokens& tokens) const;

  const Recipe& recipe_;
  const net::Denoiser& model_;
  const StageData& data_;
  diffusion::Options options_;
  const plan::Plan* plan_ = nullptr;
  int64_t step_ = 0;
  int rank_ = 0;
  double loss_ = 0, gradient_scale_ = 1;
  int64_t bad_sample_ = -1;
  /// What the loss of a micro-batch needs, from its load to its loss; several are in flight in a pipeline.
  struct Micro {
    std::vector<Target> targets;
    std::vector<double> weights;
    std::vector<int64_t> indices;
  };
  std::map<int, Micro> micros_;
};

/// Mean of squares of prediction - target over one sample's rows, and its gradient times `scale` in place of
/// prediction's copy: gradient[i] = 2 (prediction - target) * scale / n. Shared with `verify`.
double mean_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient);

/// The same over the predictions of sample `s` of a batch: the mean over all of them, of which this rank has the part
/// of the tokens that are here. `gradient` is that of the whole of `prediction`.
double sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target, double scale,
                    const at::Tensor& gradient);

}  // namespace tessera::train
