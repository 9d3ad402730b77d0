#pragma once
// Prodigy (Mishchenko and Defazio, 2023, https://arxiv.org/abs/2306.06101): Adam whose step size d is estimated from how far
// the parameters have come and what their gradients say about that, as in prodigyopt with decoupled decay. The learning rate
// is a factor of it, normally 1.
//
//   Prodigy prodigy({.bias_correction = true});
//   ProdigySize size(options);                       // d, the same on every rank
//   prodigy.update(slice, {step, 1, scale, size.d()});
//   size.take(totals, control);                      // once the totals of all slices are there
#include <array>
#include <cmath>
#include <limits>

#include "tessera/net/unit_update.h"

namespace tessera::optim {

struct ProdigyOptions {
  std::array<double, 2> betas = {0.9, 0.999};
  double beta3 = 0;  ///< of the sums that d is estimated from; 0: the root of the second beta
  double eps = 1e-8, weight_decay = 0;
  double d0 = 1e-6, d_coef = 1;  ///< the first d; a factor of the estimates
  double growth_rate =
      std::numeric_limits<double>::infinity();  ///< d becomes at most that many times as large in a step
  bool bias_correction = false;                 ///< Adam's, as a factor of the learning rate
  bool safeguard_warmup = false;                ///< no learning rate in the sums of gradients
  plan::StateFormat format = {.optimizer = plan::Optimizer::prodigy};
  uint64_t seed = 0;  ///< key of stochastic rounding

  double third() const { return beta3 > 0 ? beta3 : std::sqrt(betas[1]); }
  /// d times the rate of a step, and the correction.
  double rate(const net::StepControl& control) const;
};

/// With g the scaled gradient and r = d lr: m = b1 m + (1 - b1) d g; v = b2 v + (1 - b2) d^2 g^2; s = b3 s + d / d0 r g;
/// p *= 1 - r wd; p -= r m / (sqrt(v) + d eps). Totals: the sums of g (p0 - p) before the update, and of |s|.
///
/// All of an update has the d that its step began with. prodigyopt has the next one beside eps, which changes nothing but
/// elements whose gradient is as small as eps; it would need all gradients of a step to be read before any is used.
class Prodigy final : public net::UnitUpdate {
 public:
  explicit Prodigy(ProdigyOptions options) : options_(options), states_(plan::states_of(options.format)) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  void update(const net::Slice& slice, const net::StepControl& control) const override;
  bool totals() const override { return true; }

 private:
  ProdigyOptions options_;
  plan::StatesOf states_;
};

/// The estimate of d, from the totals of all parameters.
class ProdigySize {
 public:
  explicit ProdigySize(ProdigyOptions options) : ProdigySize(options, options.d0, options.d0, 0) {}
  ProdigySize(ProdigyOptions options, double d, double most, double numerator)
      : options_(options), d_(d), most_(most), numerator_(numerator) {}

  double d() const { return d_; }
  double most() const { return most_; }  ///< of the estimates, towards which d grows
  double numerator() const { return numerator_; }
  double estimate() const { return estimate_; }  ///< the last one, which d has not followed if it was smaller
  /// What the updates of `control` summed.
  void take(const net::Totals& totals, const net::StepControl& control);

 private:
  ProdigyOptions options_;
  double d_, most_, numerator_, estimate_ = 0;
};

}  // namespace tessera::optim
