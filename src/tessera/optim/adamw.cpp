#include "tessera/optim/adamw.h"

#include <algorithm>

#include "tessera/ops/adamw.h"

namespace tessera::optim {

void AdamW::allocate(int unit, int64_t count) {
  if (static_cast<int>(moments_.size()) <= unit) moments_.resize(unit + 1);
  moments_[unit] = {at::zeros({count}, at::kFloat), at::zeros({count}, at::kFloat)};
}

void AdamW::update(int unit, at::Tensor& param, const at::Tensor& grad, const net::StepControl& control) {
  ops::AdamWStep step;
  step.step = control.step;
  step.lr = control.lr;
  step.beta1 = options_.betas[0];
  step.beta2 = options_.betas[1];
  step.eps = options_.eps;
  step.weight_decay = options_.weight_decay;
  step.grad_scale = control.scale;
  Moments& m = moments_.at(unit);
  ops::adamw(param.mutable_data_ptr<float>(), m.exp_avg.mutable_data_ptr<float>(),
             m.exp_avg_sq.mutable_data_ptr<float>(), grad.const_data_ptr<float>(), param.numel(), step);
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::states(int unit) {
  return {{"exp_avg", moments_.at(unit).exp_avg}, {"exp_avg_sq", moments_.at(unit).exp_avg_sq}};
}

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace tessera::optim
