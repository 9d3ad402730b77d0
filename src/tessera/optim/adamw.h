#pragma once
// AdamW (Loshchilov and Hutter, 2019) over flat shards, with decoupled weight decay as in PyTorch; masters and moments
// in any format of plan/states.h.
//
//   AdamW adamw({.betas = {0.9, 0.999}, .weight_decay = 0.01, .format = {plan::Masters::split, plan::Moments::int8}});
//
// Lion (Chen et al., 2023, https://arxiv.org/abs/2302.06675): parameters move by the sign of a momentum, all by the same
// amount. One moment; needs a learning rate three to ten times smaller than AdamW's and a decay as much larger.
//
//   Lion lion({.betas = {0.9, 0.99}, .weight_decay = 0.1, .format = {.optimizer = plan::Optimizer::lion}});
#include <array>

#include "tessera/net/unit_update.h"

namespace tessera::optim {

struct AdamWOptions {
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  plan::StateFormat format = {};
  uint64_t seed = 0;  ///< key of stochastic rounding
  /// See ops::AdamWStep: reproduces differences of bitsandbytes' CUDA kernel from PyTorch, for comparisons.
  bool decay_last = false, keep_sign = false;
  /// eps is added to the root of the second moment before its bias is corrected, as in HunyuanVideo-1.5's.
  bool early_eps = false;
};

class AdamW final : public net::UnitUpdate {
 public:
  explicit AdamW(AdamWOptions options) : options_(options), states_(plan::states_of(options.format)) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  void update(const net::Slice& slice, const net::StepControl& control) const override;

 private:
  AdamWOptions options_;
  plan::StatesOf states_;
};

struct LionOptions {
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;
  plan::StateFormat format = {.optimizer = plan::Optimizer::lion};
  uint64_t seed = 0;  ///< key of stochastic rounding
};

/// p *= 1 - lr wd; p -= lr sign(b1 m + (1 - b1) g), where sign(0) is 0; m = b2 m + (1 - b2) g.
class Lion final : public net::UnitUpdate {
 public:
  explicit Lion(LionOptions options) : options_(options), states_(plan::states_of(options.format)) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  void update(const net::Slice& slice, const net::StepControl& control) const override;

 private:
  LionOptions options_;
  plan::StatesOf states_;
};

/// Gradient clipping by global norm: min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; max_norm 0
/// disables it.
double clip_coefficient(double norm, double max_norm);

}  // namespace tessera::optim
