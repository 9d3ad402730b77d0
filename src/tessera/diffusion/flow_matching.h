#pragma once
// The flow-matching objective of one rank: packs a step's samples into micro-batches, and holds each prediction against
// the velocity of its sample. It does not know where samples come from, nor which network predicts.
//
//   FlowMatching objective(model, rank);
//   objective.begin({.plan = &plan, .samples = &samples, .places = places, .step = own_step});
//   engine.run(pass, objective, report);
//   objective.loss();                                    // this rank's share of the step's mean loss
#include <map>
#include <vector>

#include "tessera/diffusion/loss.h"
#include "tessera/diffusion/training_sample.h"
#include "tessera/net/objective.h"
#include "tessera/plan/plan.h"

namespace tessera::diffusion {

/// What a pass trains on. All that it points to outlives the pass.
struct PassData {
  const plan::Plan* plan = nullptr;  ///< whose slices count this rank's samples
  const TrainingSamples* samples = nullptr;
  std::vector<int64_t> places;  ///< of those samples, in the order of the slices
  int64_t step = 0;             ///< keys the draws of dropout
  double gradient_scale = 1;    ///< multiplies gradients, not losses (optim/grad_scaler.h)

  // where several experts answer a sample, or a gate learns from their answers (train/gate_schedule.h)
  bool weighed = false;              ///< a gate wants to know what each answer's weight does to the loss
  std::vector<double> weights = {};  ///< of the prediction, by own sample; empty: 1
  /// By place, the weighted sum of all experts' predictions [rows, C], which then is what the loss is of.
  const std::map<int64_t, at::Tensor>* sums = nullptr;
  bool books = true;  ///< whether the loss counts; of several experts that answer together one books it
};

class FlowMatching final : public net::Objective {
 public:
  /// The model outlives it.
  FlowMatching(const net::Denoiser& model, int rank) : model_(model), rank_(rank) {}

  void begin(PassData pass);
  /// The whole micro-batch, whoever shares it; of the targets the rows that are this rank's stay here, and none where
  /// another pipeline stage has the loss.
  net::Batch batch(int micro) override;
  /// The same for a pass without a loss. A rank that has no sample of it gets another, so that all ranks have one
  /// (spare_place of its plan).
  net::Batch inputs(int micro) const;
  /// Mean over the global batch of each sample's weighted mean squared error; returns its gradient [T, C]. Where ranks
  /// share a sample, each has the part of its own tokens, in the prediction as in the sum.
  at::Tensor gradient(const at::Tensor& prediction, const net::Batch& batch, int micro) override;
  void read() override;

  // after read
  double loss() const { return loss_; }               ///< this rank's share of the step's mean loss
  int64_t bad_sample() const { return bad_sample_; }  ///< data-set index of the first whose loss is not finite; -1
  /// Of PassData::places: the gradient of the loss by the weight of this expert's prediction, which is
  /// <dL/dprediction, prediction> over the tokens here.
  const std::vector<double>& by_weight() const { return by_weight_; }

 private:
  /// What the loss of a micro-batch needs, from its load to its loss; several are in flight in a pipeline.
  struct Micro {
    std::vector<Target> targets;
    std::vector<double> weights;
    std::vector<int64_t> indices;
    int64_t first = 0;  // of its samples among this dp rank's
  };
  /// A loss as it was computed, on the device until it is read.
  struct Booked {
    double error = 0, share = 0;
    int64_t index = 0;
  };
  net::Batch pack(const std::vector<int64_t>& places, Micro& micro) const;
  void cut_targets(std::vector<Target>& targets, const net::Tokens& tokens) const;
  at::Tensor with_sums(const at::Tensor& prediction, const net::Batch& batch, const Micro& micro) const;
  void weigh(const at::Tensor& prediction, const net::Batch& batch, size_t s, int64_t own, at::Tensor& gradient);
  int64_t first_sample() const;

  const net::Denoiser& model_;
  const int rank_;
  PassData pass_;
  std::map<int, Micro> micros_;
  std::vector<Booked> booked_;
  std::vector<double> by_weight_;
  double loss_ = 0;
  int64_t bad_sample_ = -1;
};

/// The place whose sample a rank without one of micro-batch `micro` runs where all must run one.
int64_t spare_place(const plan::Plan& plan, int dp_rank, int64_t micro);

}  // namespace tessera::diffusion
