#pragma once
// The flow-matching objective over one rank's micro-batches: which samples, their noise and timestep, the loss and its
// gradient. All draws are keyed by (seed, step, place in the global batch), so layouts do not change them.
//
//   objective.begin(step, plan, rank);
//   net::Batch batch = objective.load(micro);
//   Tensor gradient = objective.loss(prediction, batch, micro);
#include <map>
#include <vector>

#include "tessera/data/cache.h"
#include "tessera/diffusion/flow.h"
#include "tessera/diffusion/loss.h"
#include "tessera/net/model.h"
#include "tessera/plan/plan.h"
#include "tessera/prepare/stage_data.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {

/// A step's samples as one of several experts has them that a gate chooses among (train/gated_step.h). Its plan's
/// slices count the expert's samples; `places` are those of this dp rank in the global batch.
struct Routed {
  std::vector<int64_t> places;
  std::vector<double> weights = {};  ///< of the expert's prediction, by own sample; empty: 1, it answers alone
  /// By place, the weighted sum of all experts' predictions [rows, C], which then is what the loss is of.
  const std::map<int64_t, at::Tensor>* sums = nullptr;
  bool books = true;  ///< whether the loss counts; of several experts that answer together one books it
};

class Objective {
 public:
  /// All of one part of the run; they outlive the objective. `options`: how timesteps are drawn.
  Objective(const recipe::Recipe& recipe, const net::Denoiser& model, const prepare::StageData& data,
            const diffusion::Options& options);

  /// `step` keys the draws: of several experts that take turns each counts its own. `routed` outlives the step's use.
  void begin(int64_t step, const plan::Plan& plan, int rank, const Routed* routed = nullptr);
  /// What a gate is asked about the sample at a place of the global batch.
  struct Question {
    double t = 0;
    data::CachedTensor context;
  };
  Question question(int64_t place) const;
  /// The whole micro-batch, whoever shares it; of the targets the rows that are this rank's stay here, and none where
  /// another pipeline stage has the loss.
  net::Batch load(int micro);
  /// The same for a pass without a loss. A rank that has no sample of it gets another, so that all ranks have one.
  net::Batch inputs(int micro) const;
  /// Mean over the global batch of each sample's weighted mean squared error; returns its gradient [T, C]. Where ranks
  /// share a sample, each has the part of its own tokens, in the prediction as in the sum.
  at::Tensor loss(const at::Tensor& prediction, const net::Batch& batch, int micro);

  /// What gradients, not losses, are multiplied by from now on (optim/grad_scaler.h).
  void scale_gradients(double scale) { gradient_scale_ = scale; }

  double loss_sum() const { return loss_; }  ///< this rank's share of the step's mean loss
  /// Dataset index of the first sample whose loss is not finite; -1.
  int64_t bad_sample() const { return bad_sample_; }
  /// Of the samples of Routed::places: the gradient of the loss by the weight of this expert's prediction, which is
  /// <dL/dprediction, prediction> over the tokens here.
  const std::vector<double>& by_weight() const { return by_weight_; }

 private:
  /// What the loss of a micro-batch needs, from its load to its loss; several are in flight in a pipeline.
  struct Micro {
    std::vector<diffusion::Target> targets;
    std::vector<double> weights;
    std::vector<int64_t> indices;
    int64_t first = 0;  // of its samples among this dp rank's
  };
  net::Batch pack(int64_t first, int64_t count, Micro& micro) const;
  int64_t place_of(int64_t sample) const;
  bool begins_clean(int64_t place, const at::Tensor& latent) const;
  void cut_targets(std::vector<diffusion::Target>& targets, const net::Tokens& tokens) const;
  at::Tensor with_sums(const at::Tensor& prediction, const net::Batch& batch, const Micro& micro) const;
  void weigh(const at::Tensor& prediction, const net::Batch& batch, size_t s, int64_t own, at::Tensor& gradient);

  const recipe::Recipe& recipe_;
  const net::Denoiser& model_;
  const prepare::StageData& data_;
  diffusion::Options options_;
  const plan::Plan* plan_ = nullptr;
  const Routed* routed_ = nullptr;
  std::vector<double> by_weight_;
  int64_t step_ = 0;
  int rank_ = 0;
  double loss_ = 0, gradient_scale_ = 1;
  int64_t bad_sample_ = -1;
  std::map<int, Micro> micros_;
};

}  // namespace tessera::train
