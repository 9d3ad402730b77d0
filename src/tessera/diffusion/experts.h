#pragma once
// The expert of each step. Two denoisers that each own a range of timesteps (Wan 2.2) train in alternating periods of a
// fixed number of optimiser steps. The expert of a period depends on the seed and its number only, so all ranks know it
// in advance without communication.
//
//   ExpertOrder order({.seed = 0, .period = 1, .experts = 2});
//   order.extend(1000, {0.4, 0.6});                 // the next 1000 steps, with the shares of the two experts
//   order.expert(17);                               // expert of step 17; steps count from 1
//   order.own_step(17);                             // number of that expert's steps up to step 17
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/random.h"

namespace tessera::diffusion {

class ExpertOrder {
 public:
  struct Rule {
    uint64_t seed = 0;
    int64_t period = 1;  ///< optimiser steps of a period
    size_t experts = 1;
    int64_t cycle = 0;  ///< of two: the first has one step of every so many, and begins; 0: by shares
  };
  explicit ExpertOrder(const Rule& rule) : rule_(rule), taken_(rule.experts, 0) {}

  /// Appends steps in which each expert has its share of the periods; shares sum to 1. A period that began under other
  /// shares is completed first.
  void extend(int64_t steps, const std::vector<double>& shares);

  int64_t steps() const { return steps_; }
  size_t expert(int64_t step) const { return alone() ? 0 : order_.at(static_cast<size_t>(step - 1)).expert; }
  int64_t own_step(int64_t step) const { return alone() ? step : order_.at(static_cast<size_t>(step - 1)).own; }
  /// Steps that an expert has run after `step` steps of the run.
  int64_t done(size_t expert, int64_t step) const;

 private:
  struct Step {
    uint32_t expert;
    int64_t own;
  };
  bool alone() const { return rule_.experts == 1; }

  const Rule rule_;
  int64_t steps_ = 0;
  std::vector<Step> order_;     // empty for one expert, whose run may have any number of steps
  std::vector<int64_t> taken_;  // steps of each expert
};

// A learned choice among denoisers: one linear layer on a sample's timestep and text, evaluated before any denoiser.
// With expert_order.h a whole step has one expert; with a gate each sample chooses its own.
//
//   Gate gate({.experts = 4, .text = 4096});
//   const std::vector<float> inputs = gate_inputs(t, context, tokens, 4096);
//   Gate::Answer answer = gate.ask(inputs, &key);
//   answer.chosen; answer.weights;                          // of a hard gate; of a soft gate
//   gate.backward(inputs, answer, dloss_dweights, dloss_dnoiseless, gradient);
//
// [Note: what a gate learns from] The prediction is sum_e w_e f_e. For a soft gate w is softmax((logits + noise) /
// temperature) with Gumbel noise (Jang et al., 2017). For a hard gate w is one-hot at the largest entry in the forward
// and uses the soft weight of the chosen expert in the backward: w_c = 1 + p_c - stop_gradient(p_c). So only the chosen
// expert runs, and dL/dp_c = <dL/dprediction, f_c>.

/// Number of timestep features: cosines, then sines, of 32 frequencies as in the denoisers' own embedding.
inline constexpr int64_t kGateTimes = 64;

/// The gate's inputs, [kGateTimes + width]: features of the timestep `t` (0 to 1000), and the mean over the rows of the
/// text embedding [tokens, width], scaled to a root mean square of 1.
std::vector<float> gate_inputs(double t, std::span<const float> context, int64_t tokens, int64_t width);

struct GateOptions {
  size_t experts = 2;
  int64_t text = 0;        ///< width of text embeddings
  double temperature = 1;  ///< initial value; it is learned
  uint64_t seed = 0;       ///< of the initial weights, which are so small that noise dominates at first
};

class Gate {
 public:
  explicit Gate(const GateOptions& options);

  struct Answer {
    std::vector<double> weights;    ///< softmax((logits + noise) / temperature), sums to 1
    std::vector<double> noiseless;  ///< softmax(logits / temperature), without noise
    size_t chosen = 0;              ///< index of the largest weight; the first on ties
    double entropy() const;         ///< of `noiseless`, in nats: log(experts) for a uniform gate
  };
  /// `noise` keys the Gumbel draws; without it `weights` equal `noiseless`, as in sampling.
  Answer ask(std::span<const float> inputs, const RandomKey* noise = nullptr) const;

  /// Adds one sample's gradient to `gradient` (laid out as values()), from the gradients of the loss with respect to
  /// its `weights` and `noiseless` weights.
  void backward(std::span<const float> inputs, const Answer& answer, std::span<const double> by_weights,
                std::span<const double> by_noiseless, std::span<double> gradient) const;

  size_t experts() const { return experts_; }
  int64_t inputs() const { return inputs_; }
  double temperature() const;

  /// weight [experts, inputs], bias [experts], log_temperature [1], concatenated.
  std::vector<float>& values() { return values_; }
  const std::vector<float>& values() const { return values_; }
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
    size_t first, count;
  };
  std::vector<Part> parts() const;

 private:
  std::vector<double> logits(std::span<const float> inputs) const;

  size_t experts_;
  int64_t inputs_;
  std::vector<float> values_;
};

/// experts x sum_e share_e probability_e (Fedus et al., 2021): 1 if both are uniform, `experts` if all samples choose
/// one. `share[e]`: fraction of a step's samples that chose e; `probability[e]`: mean of their noiseless weights. Only
/// the latter has a gradient, experts x share[e] / samples for each sample.
double balance_loss(std::span<const double> share, std::span<const double> probability);

}  // namespace tessera::diffusion
