// AdamW without a schedule against its formulas in fp64, over ranks, masters, warm-ups and powers.
#include "tessera/optim/schedule_free.h"

#include <gtest/gtest.h>

#include <cmath>

#include "optim/ranks.h"

namespace tessera::optim {
namespace {

constexpr int64_t kCount = 37 * 40;
using Rate = double (*)(int64_t);

double constant(int64_t) { return 3e-2; }
double warm(int64_t step) { return 5e-2 * std::min(1.0, static_cast<double>(step - 1) / 3); }  // the first is 0

at::Tensor gradient(int64_t step) {
  return at::cos(at::arange(kCount).to(at::kFloat) * (0.13 * static_cast<double>(step)));
}

/// x, y and z after some steps, all in fp64.
struct Plain {
  at::Tensor y = at::sin(at::arange(kCount).to(at::kFloat) * 0.37).to(at::kDouble), z = y.clone(), x = y.clone(),
             v = at::zeros_like(y);

  void follow(const ScheduleFreeOptions& o, Rate rate, int64_t steps) {
    double all = 0, largest = 0;
    for (int64_t k = 1; k <= steps; ++k) {
      const at::Tensor g = gradient(k).to(at::kDouble) * 0.5;
      v = o.betas[1] * v + (1 - o.betas[1]) * g * g;
      const at::Tensor d = g / ((v / (1 - std::pow(o.betas[1], k))).sqrt() + o.eps) + o.weight_decay * y;
      largest = std::max(largest, rate(k));
      const double w = largest > 0 ? std::pow(k, o.r) * std::pow(largest, o.power) : 0;
      all += w;
      const double c = all > 0 ? w / all : 0;
      z = z - rate(k) * d;
      x = (1 - c) * x + c * z;
      y = o.betas[0] * x + (1 - o.betas[0]) * z;
    }
  }
};

double off(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>();
}

TEST(ScheduleFree, FollowsItsFormulasOnAnyRanksAndMasters) {
  const ScheduleFreeOptions cases[] = {
      {}, {.betas = {0.7, 0.9}, .eps = 0.05, .weight_decay = 0.3}, {.betas = {0.95, 0.99}, .r = 1.5, .power = 1}};
  for (const Rate rate : {constant, warm})
    for (ScheduleFreeOptions options : cases)
      for (const plan::Masters masters : {plan::Masters::fp32, plan::Masters::split}) {
        options.format.masters = masters;
        const ScheduleFree free(options, rate);
        Ranks whole(free, {37, 40}, {0, kCount}, 0, masters), cut(free, {37, 40}, {0, 256, 1024, kCount}, 0, masters);
        for (int64_t step = 1; step <= 8; ++step)
          for (Ranks* ranks : {&whole, &cut}) ranks->step({step, rate(step), 0.5, 0}, gradient(step));
        Plain plain;
        plain.follow(options, rate, 8);
        EXPECT_LT(off(whole.whole(), plain.y), 2e-6) << name(masters);
        EXPECT_LT(off(whole.state("ema"), plain.x), 2e-6);
        EXPECT_LT(off(whole.state("exp_avg"), plain.z), 2e-6);
        EXPECT_GT(off(whole.whole(), plain.x), 1e-3) << "trained weights and their mean differ";
        EXPECT_TRUE(at::equal(whole.whole(), cut.whole()));
        EXPECT_TRUE(at::equal(whole.state("ema").narrow(0, 0, 256), cut.state("ema")));
      }
}

TEST(ScheduleFree, TheWeightOfAStepDependsOnNothingButTheStep) {
  const ScheduleFree even({}, constant), rising({}, warm);
  for (const int64_t step : {1, 2, 7, 3, 100, 99})
    EXPECT_NEAR(even.averaging(step), 1.0 / static_cast<double>(step), 1e-12);
  EXPECT_EQ(rising.averaging(1), 0) << "its rate is 0";
  EXPECT_EQ(rising.averaging(2), 1);
  EXPECT_NEAR(rising.averaging(4), 9.0 / 14, 1e-12) << "1, 4 and 9 ninths";
  EXPECT_NEAR(rising.averaging(5), 9.0 / 23, 1e-12);
}

TEST(ScheduleFree, RectifiedStepsWaitUntilTheirVarianceSaysSomething) {
  const ScheduleFree silent({.rectified = true}, constant), plain({.rectified = true, .silent = false}, constant);
  EXPECT_EQ(silent.rectification(4), 0);
  EXPECT_EQ(plain.rectification(4), 1);
  EXPECT_GT(silent.rectification(5), 0);
  EXPECT_NEAR(silent.rectification(100000), 1, 1e-3);
  Ranks still(silent, {37, 40}, {0, kCount}), moved(plain, {37, 40}, {0, kCount});
  const at::Tensor start = still.whole().clone();
  for (Ranks* ranks : {&still, &moved}) ranks->step({1, constant(1), 1, 0}, gradient(1));
  EXPECT_TRUE(at::equal(still.whole(), start));
  EXPECT_LT(off(moved.whole(), (start - constant(1) * gradient(1)).to(at::kDouble)), 1e-6) << "by the gradient itself";
}

}  // namespace
}  // namespace tessera::optim
