#pragma once
// AdamW (Loshchilov and Hutter, 2019) over flat shards, fp32 masters and moments, decoupled decay as in PyTorch.
//
//   AdamW adamw({.betas = {0.9, 0.999}, .eps = 1e-8, .weight_decay = 0.01});
#include "tessera/net/unit_update.h"

namespace tessera::optim {

struct AdamWOptions {
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
};

class AdamW final : public net::UnitUpdate {
 public:
  explicit AdamW(AdamWOptions options) : options_(options) {}

  void allocate(int unit, int64_t count) override;
  void update(int unit, at::Tensor& param, const at::Tensor& grad, const net::StepControl& control) override;
  std::vector<std::pair<std::string, at::Tensor>> states(int unit) override;

 private:
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;
  };
  AdamWOptions options_;
  std::vector<Moments> moments_;
};

/// Clipping by global norm: min(1, max_norm / (norm + 1e-6)); max_norm 0 means no clipping
/// (torch.nn.utils.clip_grad_norm_).
double clip_coefficient(double norm, double max_norm);

}  // namespace tessera::optim
