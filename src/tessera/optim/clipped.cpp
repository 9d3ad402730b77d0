#include "tessera/optim/clipped.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/update_block.h"

namespace tessera::optim {

void Clipped::divided(const net::Slice& slice, const net::StepControl& control, int64_t at, int64_t count, float* out,
                      float* moment) const {
  const auto scale = static_cast<float>(control.scale);
  for (int64_t i = 0; i < count; ++i) out[i] = slice.grad[at + i] * scale;
  if (const plan::Factors factors = this->factors(slice); factors.any())
    return FactoredMoment(slice, factors, "exp_avg_sq").divide(at, count, out, slice.sums[0]);
  const Second second = this->second(control);
  const auto keep = static_cast<float>(second.beta), take = static_cast<float>(1 - second.beta),
             eps = static_cast<float>(second.eps);
  const float* old = slice.state<float>("exp_avg_sq") + at;
  for (int64_t i = 0; i < count; ++i) {
    const float now = old[i] * keep + (out[i] * out[i] + eps) * take;
    out[i] /= std::sqrt(now);
    if (moment) moment[i] = now;
  }
}

float Clipped::clip(const net::Slice& slice, const net::StepControl& control) const {
  const double rms = std::sqrt(slice.sums[1][0] / static_cast<double>(slice.numel));
  return static_cast<float>(1 / std::max(1.0, rms / second(control).clip_threshold));
}

void Clipped::add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const {
  const plan::Factors factors = this->factors(slice);
  const FactoredMoment moment(slice, factors, "exp_avg_sq");
  const auto scale = static_cast<float>(control.scale), eps = static_cast<float>(second(control).eps);
  float values[ops::kUpdateBlock];
  for (int64_t at = 0; at < slice.count(); at += ops::kUpdateBlock) {
    const int64_t count = std::min(ops::kUpdateBlock, slice.count() - at);
    if (round == 0 && factors.any()) {
      for (int64_t i = 0; i < count; ++i) {
        const float gradient = slice.grad[at + i] * scale;
        values[i] = gradient * gradient + eps;
      }
      moment.add(at, count, values, sums);
    } else if (round == 1) {
      divided(slice, control, at, count, values, nullptr);
      for (int64_t i = 0; i < count; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
}

void Clipped::take_sums(const net::Slice& slice, const net::StepControl& control, int round) const {
  const plan::Factors factors = this->factors(slice);
  if (round == 0 && factors.any())
    FactoredMoment(slice, factors, "exp_avg_sq").take(slice.sums[0], second(control).beta);
}

}  // namespace tessera::optim
