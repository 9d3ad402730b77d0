#pragma once
// A learned choice among denoisers: one linear layer over what is known of a sample before any of them runs, its
// timestep and its text. The second router beside turns.h: there a step has one expert, here each sample chooses.
//
//   Gate gate({.experts = 4, .text = 4096});
//   const std::vector<float> asked = gate_inputs(t, context, tokens, 4096);
//   Gate::Answer answer = gate.ask(asked, RandomKey(seed, Purpose::turn, step, place));
//   answer.chosen; answer.weights;                          // of a hard gate; of a soft one
//   gate.backward(asked, answer, dloss_dweights, dloss_dcalm, gradient);
//
// [Note: what a gate learns from] The prediction is sum_e w_e f_e. Soft, w is softmax((logits + noise) / temperature)
// with Gumbel noise (Jang et al., 2017). Hard, w is 1 for the largest of these and 0 for the others on the way forward,
// and backward the soft weight of the one that was chosen: w_c = 1 + p_c - stop_gradient(p_c). So only that one need be
// computed, and dL/dp_c = <dL/dprediction, f_c>.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/random.h"

namespace tessera::diffusion {

/// Values that stand for the timestep: cosines, then sines, of 32 frequencies as in the denoisers' own embedding.
inline constexpr int64_t kGateTimes = 64;

/// What a gate looks at, [kGateTimes + width]: the timestep `t` (0 to 1000), and the mean over the `tokens` rows of the
/// text embedding [tokens, width], scaled to a root mean square of 1.
std::vector<float> gate_inputs(double t, std::span<const float> context, int64_t tokens, int64_t width);

struct GateOptions {
  size_t experts = 2;
  int64_t text = 0;        ///< width of text embeddings
  double temperature = 1;  ///< at the start; it is learned
  uint64_t seed = 0;       ///< of the initial weights: small, so that noise decides at first
};

class Gate {
 public:
  explicit Gate(const GateOptions& options);

  struct Answer {
    std::vector<double> weights;  ///< softmax((logits + noise) / temperature), sums to 1
    std::vector<double> calm;     ///< the same without noise
    size_t chosen = 0;            ///< the largest of `weights`; the first of equal ones
    double entropy() const;       ///< of `calm`, in nats: log(experts) where it has no opinion
  };
  /// `noise` keys the Gumbel draws; without it `weights` are `calm`, as when samples are made.
  Answer ask(std::span<const float> inputs, const RandomKey* noise = nullptr) const;

  /// Adds to `gradient` (as values()) what a sample's answer has part in: the gradients of the loss by its `weights`
  /// and by its `calm` weights.
  void backward(std::span<const float> inputs, const Answer& answer, std::span<const double> by_weights,
                std::span<const double> by_calm, std::span<double> gradient) const;

  size_t experts() const { return experts_; }
  int64_t inputs() const { return inputs_; }
  double temperature() const;

  /// weight [experts, inputs], bias [experts], log_temperature [1], one after the other.
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

/// experts x sum_e share_e probability_e (Fedus et al., 2021): 1 where both are even, `experts` where all choose one.
/// `share[e]`: of the samples of a step, those that chose e; `probability[e]`: mean of their calm weights. Only the
/// latter has a gradient, experts x share[e] / samples for each sample.
double balance_loss(std::span<const double> share, std::span<const double> probability);

}  // namespace tessera::diffusion
