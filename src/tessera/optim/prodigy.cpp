#include "tessera/optim/prodigy.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/update_block.h"
#include "tessera/optim/slice_ranges.h"

namespace tessera::optim {

namespace {

struct ProdigyFactors {
  float scale, keep_first, take_first, keep_second, take_second, keep_sum, take_sum, decay, step, eps;
};

struct Moved {
  float *p, *m, *v, *s;
  const float *start, *g;
};

/// Eight sums take turns, so that the loop vectorises with one order for every processor.
constexpr int kTurns = 8;

TESSERA_KERNEL void prodigy_block(const Moved& x, int64_t n, const ProdigyFactors& f, double* totals) {
  float toward[kTurns] = {}, size[kTurns] = {};
  const auto one = [&](int64_t i, int turn) {
    const float g = x.g[i] * f.scale;
    toward[turn] += g * (x.start[i] - x.p[i]);
    x.m[i] = x.m[i] * f.keep_first + g * f.take_first;
    x.v[i] = x.v[i] * f.keep_second + g * g * f.take_second;
    x.s[i] = x.s[i] * f.keep_sum + g * f.take_sum;
    size[turn] += std::abs(x.s[i]);
    const float root = std::sqrt(x.v[i]) + f.eps;
    x.p[i] = x.p[i] * f.decay - (root > 0 ? f.step * (x.m[i] / root) : 0);
  };
  int64_t i = 0;
  for (; i + kTurns <= n; i += kTurns)
    for (int turn = 0; turn < kTurns; ++turn) one(i + turn, turn);
  for (int turn = 0; i < n; ++i, ++turn) one(i, turn);
  for (int turn = 0; turn < kTurns; ++turn)
    totals[0] += static_cast<double>(toward[turn]), totals[1] += static_cast<double>(size[turn]);
}

}  // namespace

double ProdigyOptions::rate(const net::StepControl& control) const {
  const auto step = static_cast<double>(control.step);
  const double correction =
      bias_correction ? std::sqrt(1 - std::pow(betas[1], step)) / (1 - std::pow(betas[0], step)) : 1;
  return control.d * control.lr * correction;
}

void Prodigy::update(const net::Slice& slice, const net::StepControl& control) const {
  check_internal(control.d > 0, "optim.prodigy", "an update without a step size");
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const double d = control.d, rate = options_.rate(control);
  const auto& [b1, b2] = options_.betas;
  const ProdigyFactors f = {rounded(control.scale),
                            rounded(b1),
                            rounded((1 - b1) * d),
                            rounded(b2),
                            rounded((1 - b2) * d * d),
                            rounded(options_.third()),
                            rounded(d / options_.d0 * (options_.safeguard_warmup ? d : rate)),
                            rounded(1 - rate * options_.weight_decay),
                            rounded(rate),
                            rounded(d * options_.eps)};
  SliceRanges ranges(slice, options_.format.masters, options_.seed, control.step);
  const ops::MasterRange masters = ranges.masters();
  const ops::MomentRange first = ranges.moment("exp_avg"), second = ranges.moment("exp_avg_sq");
  const ops::DynamicMap &with_sign = ops::DynamicMap::with_sign(), &without = ops::DynamicMap::without_sign();
  auto *s = slice.state<float>("s"), *start = slice.state<float>("p0");
  net::Totals totals = {};
  for (int64_t at = 0; at < slice.count(); at += ops::kUpdateBlock) {
    const int64_t count = std::min(ops::kUpdateBlock, slice.count() - at);
    float blocks[3][ops::kUpdateBlock];
    float* p = ops::load(masters, blocks[0], at, count);
    float* m = ops::load(first, with_sign, blocks[1], at, count);
    float* v = ops::load(second, without, blocks[2], at, count);
    if (control.step == 1) std::copy_n(p, count, start + at);
    prodigy_block({p, m, v, s + at, start + at, slice.grad + at}, count, f, totals.data());
    ops::store(masters, p, at, count);
    ops::store(first, with_sign, /*keep_sign=*/false, m, at, count);
    ops::store(second, without, /*keep_sign=*/false, v, at, count);
  }
  if (!slice.totals) return;
  for (size_t t = 0; t < totals.size(); ++t) (*slice.totals)[t] += totals[t];
}

void ProdigySize::take(const net::Totals& totals, const net::StepControl& control) {
  numerator_ = options_.third() * numerator_ + control.d / options_.d0 * options_.rate(control) * totals[0];
  if (control.lr <= 0 || totals[1] <= 0) return;
  estimate_ = options_.d_coef * numerator_ / totals[1];
  // as prodigyopt: the first estimate beyond d0 is taken whole
  if (d_ == options_.d0) d_ = std::max(d_, estimate_);
  most_ = std::max(most_, estimate_);
  d_ = std::min(most_, d_ * options_.growth_rate);
}

}  // namespace tessera::optim
