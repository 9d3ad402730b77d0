#pragma once
// The flow-matching objective of one rank: packs a step's samples into micro-batches and computes the loss of each
// prediction against its sample's velocity. It is independent of the data source and of the network.
//
//   FlowMatching objective(model, rank);
//   objective.begin({.plan = &plan, .samples = &samples, .places = places, .step = own_step});
//   engine.run(pass, objective, report);
//   objective.loss();                                    // this rank's share of the step's mean loss
#include <array>
#include <map>
#include <vector>

#include "tessera/diffusion/loss.h"
#include "tessera/diffusion/training_sample.h"
#include "tessera/net/objective.h"
#include "tessera/plan/plan.h"

namespace tessera::diffusion {

/// Of a student's sample, from its forward mode: the loss is `weight` times the error of its prediction, and the mean
/// of the numbers beside it, which have a gradient of their own.
struct Learned {
  double weight = 1;
  double beside = 0, at_beside = 0;
  bool told = false;  ///< the target is the gradient at the prediction, and `beside` all of the loss
};

/// The data of one pass. Everything it points to must outlive the pass.
struct PassData {
  const plan::Plan* plan = nullptr;  ///< its slices assign samples to this rank
  const TrainingSamples* samples = nullptr;
  std::vector<int64_t> places;  ///< positions of these samples in the global batch, in the order of the slices
  int64_t batch = 0;            ///< samples of the step, of all ranks; 0: the plan's global batch
  int64_t step = 0;             ///< key of the dropout draws
  double gradient_scale = 1;    ///< multiplies gradients but not losses (optim/grad_scaler.h)

  // For several experts that predict one sample, or a gate that learns from their predictions (train/gate_schedule.h).
  bool weighed = false;              ///< compute by_weight() for a gate
  std::vector<double> weights = {};  ///< weight of the prediction, by own sample; empty: 1
  /// By position: the weighted sum of all experts' predictions [rows, C], from which the loss is computed.
  const std::map<int64_t, at::Tensor>* sums = nullptr;
  /// By position: targets that are made of what the model predicted before (asked_target), [rows, C].
  const std::map<int64_t, at::Tensor>* targets = nullptr;
  /// By position, what a student has learned of a sample; null: no student's.
  const std::map<int64_t, Learned>* learned = nullptr;
  /// By micro-batch, what chunks of its clips have left; null: nothing.
  const std::vector<std::shared_ptr<net::History>>* histories = nullptr;
  bool counts = true;  ///< whether the loss counts; of several experts that predict together, one counts it
};

/// Losses of samples by tenths of the range of timesteps, without the weights that samples have by their timestep: sums,
/// and how many samples they are of, where ranks that share a sample have a part of it each.
struct LossByTimestep {
  static constexpr size_t kBins = 10;
  std::array<double, kBins> sums{}, counts{};
  static size_t bin(double t);  ///< of a timestep, 0 to 1000
};

/// Losses of samples by their data set, sums and counts likewise; those of twins apart from them.
struct LossBySet {
  std::vector<double> sums, counts;  ///< by set, so far as there were samples
  double twins = 0, twin_count = 0;
  void add(size_t set, double loss, double count);
};

/// What the model is asked before a step, for targets: without adapters, or without a caption.
enum class Asked { base, unguided };

class FlowMatching final : public net::Objective {
 public:
  /// The model must outlive this object.
  FlowMatching(const net::Denoiser& model, int rank) : model_(model), rank_(rank) {}

  void begin(PassData pass);
  /// Packs the whole micro-batch, also if ranks share it. Keeps only this rank's rows of the targets, or none if
  /// another pipeline stage computes the loss.
  net::Batch batch(int micro) override;
  /// The same for a pass without a loss. A rank without a sample in the micro-batch runs another one (spare_place), so
  /// that all ranks run one.
  net::Batch inputs(int micro) const;
  /// Likewise those samples of the micro-batch whose target is made of such a prediction, as it is asked for, and their
  /// positions. A rank without one runs another of its samples.
  net::Batch asked_inputs(int micro, Asked asked, std::vector<int64_t>& places) const;
  /// The target of the sample at `place`, by what was predicted for each of its tokens [T, C].
  at::Tensor asked_target(Asked asked, int64_t place, const at::Tensor& predicted) const;
  /// Mean over the global batch of each sample's weighted mean squared error; returns its gradient [T, C]. Ranks that
  /// share a sample each compute the part of their own tokens, in prediction and loss.
  /// The host waits neither for the loss nor for what a gate learns from.
  at::Tensor gradient(const at::Tensor& prediction, const net::Batch& batch, int micro) override;
  /// Weights and forms of the errors, and where targets begin. None for a gate, a student and experts that predict together.
  std::optional<std::string> given(int micro) override;
  void repeat(const net::Batch& batch, int micro) override;
  std::vector<at::Tensor*> compared(int micro) override;
  at::Tensor numbers() override;
  void read(std::span<const double> numbers) override;

  // after read
  double loss() const { return loss_; }  ///< this rank's share of the step's mean loss
  /// The same by the timestep of the sample.
  const LossByTimestep& by_timestep() const { return by_timestep_; }
  const LossBySet& by_set() const { return by_set_; }
  /// data-set index of the first sample with a non-finite loss; -1
  int64_t bad_sample() const { return bad_sample_; }
  /// By PassData::places: the gradient of the loss with respect to the weight of this expert's prediction, which is
  /// <dL/dprediction, prediction> over the tokens of this rank.
  const std::vector<double>& by_weight() const { return by_weight_; }

 private:
  /// State of a micro-batch from load to loss; several are in flight in a pipeline.
  struct Micro {
    std::vector<Target> targets;
    std::vector<double> weights;
    std::vector<std::vector<double>> frame_weights;
    std::vector<int64_t> indices;
    std::vector<ops::ErrorForm> forms;
    std::vector<double> t;
    std::vector<int> sets;
    std::vector<const TrainingSample*> samples;
    int64_t first = 0;  // index of its first sample among this dp rank's samples
  };
  /// A loss value that is read at the end of the pass.
  struct PendingLoss {
    double share = 0, beside = 0;
    int64_t index = 0;
    size_t bin = 0;   // of LossByTimestep
    double part = 0;  // of the sample's predictions that this rank has
    int set = 0;
    bool of_noise = true, twin = false;  // counts in the losses by timestep, not in those by set
    bool read = false;                   // there is a number, of so large a unit
    double unit = 0;
    at::Tensor number = {};  // undefined where a graph gives it to the host
  };
  PendingLoss pending(const net::Batch& batch, const Micro& m, size_t s) const;
  net::Batch pack(const std::vector<int64_t>& places, Micro& micro, Asked asked = Asked::base) const;
  at::Tensor target_rows(int64_t place, const TrainingSample& sample) const;
  void cut_targets(std::vector<Target>& targets, const net::Tokens& tokens) const;
  at::Tensor with_sums(const at::Tensor& prediction, const net::Batch& batch, const Micro& micro) const;
  void weigh(const at::Tensor& prediction, const net::Batch& batch, size_t s, int64_t own, at::Tensor& gradient);
  ops::SampleError error(const at::Tensor& answer, const net::Batch& batch, const Micro& m, size_t s,
                         at::Tensor& gradient) const;
  void learn_beside(const net::Batch& batch, const Micro& m, size_t s, at::Tensor& gradient);
  double share(const Micro& m, size_t s) const { return m.weights[s] / static_cast<double>(batch_samples()); }
  int64_t first_sample() const;
  int64_t batch_samples() const { return pass_.batch > 0 ? pass_.batch : pass_.plan->global_batch; }
  plan::Plan::Slice slice(int64_t micro) const;

  const net::Denoiser& model_;
  const int rank_;
  PassData pass_;
  std::map<int, Micro> micros_;
  std::vector<PendingLoss> losses_;
  std::vector<std::pair<int64_t, at::Tensor>> products_;  // of own samples: of gradients and predictions, [1] of fp64
  std::vector<double> by_weight_;
  double loss_ = 0;
  LossByTimestep by_timestep_;
  LossBySet by_set_;
  int64_t bad_sample_ = -1;
};

/// The sample that a rank without one in micro-batch `micro` runs, if all ranks must run one.
int64_t spare_place(const plan::Plan& plan, int64_t batch, int dp_rank, int64_t micro);

}  // namespace tessera::diffusion
