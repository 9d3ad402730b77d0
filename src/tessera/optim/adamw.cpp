#include "tessera/optim/adamw.h"

#include <algorithm>

#include "tessera/device/backend.h"
#include "tessera/ops/adamw.h"

namespace tessera::optim {

namespace {

/// Key of stochastic rounding: by (step, tensor, kind), then by element, so that results are the same on any mesh.
RandomKey rounding_key(uint64_t seed, int64_t step, const net::Slice& slice, std::string_view kind) {
  return RandomKey(seed, Purpose::rounding, static_cast<uint64_t>(step), slice.tensor ^ hash_text(kind));
}

ops::MomentRange moment(const net::Slice& slice, const std::string& kind, const RandomKey& key) {
  ops::MomentRange range;
  range.rounding = {&key, static_cast<uint64_t>(slice.begin)};
  for (const auto& spec : *slice.specs) {
    if (spec.kind != kind) continue;
    void* data = slice.state<void>(kind);
    if (spec.type == DType::f32) range.fp32 = static_cast<float*>(data);
    if (spec.type == DType::bf16) range.bf16 = static_cast<uint16_t*>(data);
    if (spec.type == DType::u8) range.codes = static_cast<uint8_t*>(data);
  }
  range.scales = slice.state<float>(kind + std::string(plan::kScaleSuffix));
  return range;
}

}  // namespace

void AdamW::update(const net::Slice& slice, const net::StepControl& control) const {
  ops::AdamWStep step;
  step.step = control.step;
  step.lr = control.lr;
  step.beta1 = options_.betas[0];
  step.beta2 = options_.betas[1];
  step.eps = options_.eps;
  step.weight_decay = options_.weight_decay;
  step.grad_scale = control.scale;
  step.decay_last = options_.decay_last;
  step.keep_sign = options_.keep_sign;
  const auto key = [&](std::string_view kind) { return rounding_key(options_.seed, control.step, slice, kind); };
  const RandomKey param = key("param"), first = key("exp_avg"), second = key("exp_avg_sq");
  ops::MasterRange masters;
  if (options_.format.masters == plan::Masters::fp32)
    masters.fp32 = static_cast<float*>(slice.param);
  else
    masters.bf16 = static_cast<uint16_t*>(slice.param);
  masters.low = slice.state<uint16_t>(plan::kMasterLow);
  masters.rounding = {&param, static_cast<uint64_t>(slice.begin)};
  const ops::MomentRange m = moment(slice, "exp_avg", first), v = moment(slice, "exp_avg_sq", second);
  if (!slice.on_device) return ops::adamw(masters, m, v, slice.grad, slice.count(), step);
  ops::GradientRange gradient{.fp32 = slice.grad};
  (slice.half_type == at::kBFloat16 ? gradient.bf16 : gradient.fp16) = slice.half_grad;
  device::used()->adamw(masters, m, v, gradient, slice.count(), step);
}

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace tessera::optim
