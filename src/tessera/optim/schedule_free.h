#pragma once
// AdamW without a schedule (Defazio et al., 2024, https://arxiv.org/abs/2405.15682), as schedulefree's AdamWScheduleFree: a
// base iterate z moves, and x is its weighted mean over the steps. The model trains at y, between both; x is what is
// sampled, measured and exported.
//
//   ScheduleFree free({.betas = {0.9, 0.999}}, [](int64_t) { return 2.5e-3; });
//   free.averaging(control.step);                             // c, the weight of z in x
//
// The parameter is y. z is the state exp_avg, which has no other use here, and x that of an average (plan::kAverage), so
// that what samples and exports an average finds it.
#include <array>
#include <functional>
#include <mutex>

#include "tessera/net/unit_update.h"

namespace tessera::optim {

struct ScheduleFreeOptions {
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
  double r = 0, power = 2;  ///< a step's weight in the mean: step^r times the largest rate so far ^ power
  /// RAdam's rectification: early steps, whose second moment says little, have a rate of 0 if they are `silent`, else plain
  /// gradients.
  bool rectified = false, silent = true;
  plan::StateFormat format = {.ema = true};
  uint64_t seed = 0;  ///< key of stochastic rounding
};

/// With g the scaled gradient and y the parameter: v = b2 v + (1 - b2) g^2; d = g / (sqrt(v / (1 - b2^t)) + eps) + wd y;
/// z -= lr d; x += c (z - x); y = x + (1 - b1) (z - x). z and x begin as y.
class ScheduleFree final : public net::UnitUpdate {
 public:
  /// `rate`: of each step, from 1, up to a factor: of it the weights in the mean follow.
  ScheduleFree(ScheduleFreeOptions options, std::function<double(int64_t step)> rate);

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  void update(const net::Slice& slice, const net::StepControl& control) const override;

  /// The weight of z in the mean after a step; 1 in the first one whose rate is not 0.
  double averaging(int64_t step) const;
  /// What the rate of a step is multiplied by: 1, or RAdam's.
  double rectification(int64_t step) const;

 private:
  bool divides(int64_t step) const;  ///< by the root of the second moment

  const ScheduleFreeOptions options_;
  const std::function<double(int64_t)> rate_;
  const plan::StatesOf states_;
  // The sum of the weights up to a step: it depends on nothing but the step, and is kept since each begins with the last.
  struct Sum {
    int64_t step = 0;
    double largest = 0, all = 0, last = 0;
  };
  mutable std::mutex lock_;
  mutable Sum sum_;
};

}  // namespace tessera::optim
