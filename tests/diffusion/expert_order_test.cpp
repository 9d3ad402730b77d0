#include "tessera/diffusion/experts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/diffusion/flow.h"

namespace tessera::diffusion {
namespace {

Options options_of(Timesteps timesteps, double shift) {
  Options options;
  options.timesteps = timesteps;
  options.shift = shift;
  return options;
}

TEST(Windows, HaveTheMassThatTheDistributionGivesThem) {
  const Window high{0.875, 1};  // numbers of the specification
  EXPECT_NEAR(window_mass(options_of(Timesteps::uniform, 1), high), 0.125, 1e-12);
  EXPECT_NEAR(window_mass(options_of(Timesteps::uniform, 5), high), 0.417, 5e-4);
  EXPECT_NEAR(window_mass(options_of(Timesteps::uniform, 12), high), 0.632, 5e-4);
  EXPECT_NEAR(window_mass(options_of(Timesteps::uniform, 5), {0.9, 1}), 0.357, 5e-4);
  EXPECT_NEAR(window_mass(options_of(Timesteps::logit_normal, 3), high), 0.198, 5e-4);
  EXPECT_NEAR(window_mass(options_of(Timesteps::logit_normal, 5), high), 0.368, 5e-4);
  EXPECT_EQ(window_mass(options_of(Timesteps::diffsynth, 5), high), 0.417) << "indices 0 to 416";
}

TEST(Windows, AreCutAfterTheShiftAndHoldEveryDraw) {
  for (const Timesteps timesteps : {Timesteps::uniform, Timesteps::logit_normal, Timesteps::diffsynth})
    for (const Window window : {Window{0.875, 1}, Window{0, 0.875}, Window{0.3, 0.4}}) {
      Options options = options_of(timesteps, 5);
      options.window = window;
      double least = 1, most = 0;
      for (int64_t i = 0; i < 4000; ++i) {
        const TrainingDraw d = draw(options, 3, i, 1);
        ASSERT_TRUE(window.holds(d.sigma)) << d.sigma;
        ASSERT_EQ(d.t, 1000 * d.sigma);
        least = std::min(least, d.sigma), most = std::max(most, d.sigma);
      }
      if (timesteps != Timesteps::logit_normal || window.low > 0)  // it hardly ever comes near 0
        EXPECT_LT(least, window.low + 0.03) << "the whole window is drawn from";
      EXPECT_GT(most, window.high - 0.03);
    }
}

TEST(Windows, DrawsInsideAreDistributedAsThoseOfAllThatFallInside) {
  for (const Timesteps timesteps : {Timesteps::uniform, Timesteps::logit_normal, Timesteps::diffsynth}) {
    Options all = options_of(timesteps, 5), cut = all;
    cut.window = {0.2, 0.875};
    int inside = 0, below = 0, below_of_cut = 0;
    constexpr int kDraws = 40000;
    for (int64_t i = 0; i < kDraws; ++i) {
      const double sigma = draw(all, 11, i, 0).sigma;
      inside += cut.window.holds(sigma);
      below += cut.window.holds(sigma) && sigma < 0.6;
      below_of_cut += draw(cut, 12, i, 0).sigma < 0.6;
    }
    EXPECT_NEAR(static_cast<double>(below_of_cut) / kDraws, static_cast<double>(below) / inside, 0.012);
  }
}

TEST(ExpertOrder, FollowTheSharesAndCountEachExpertsOwnSteps) {
  ExpertOrder order({.seed = 5, .period = 1, .experts = 2});
  order.extend(20000, {0.417, 0.583});
  int64_t own[2] = {0, 0};
  for (int64_t step = 1; step <= order.steps(); ++step) {
    ASSERT_EQ(order.own_step(step), ++own[order.expert(step)]);
    ASSERT_EQ(order.done(order.expert(step), step), order.own_step(step));
  }
  EXPECT_NEAR(static_cast<double>(own[0]) / 20000, 0.417, 0.012);
  EXPECT_EQ(order.done(0, 20000) + order.done(1, 20000), 20000);
  EXPECT_EQ(order.done(0, 0), 0);
}

TEST(ExpertOrder, AreOfAsManyStepsAndTheSameWhateverComesAfter) {
  ExpertOrder order({.seed = 2, .period = 3, .experts = 2}), longer = order;
  order.extend(31, {0.5, 0.5});
  longer.extend(31, {0.5, 0.5});
  longer.extend(100, {0.9, 0.1});
  for (int64_t step = 1; step <= 31; ++step) {
    EXPECT_EQ(order.expert(step), order.expert((step - 1) / 3 * 3 + 1)) << "step " << step;
    EXPECT_EQ(order.expert(step), longer.expert(step));
  }
  EXPECT_EQ(longer.expert(33), longer.expert(31)) << "a turn is led to its end";
}

TEST(ExpertOrder, OfOneAloneAreAsManyAsThereAreStepsAndTakeNoRoom) {
  ExpertOrder order({.seed = 5, .period = 3, .experts = 1});
  order.extend(7, {1});
  order.extend(1'000'000'000'000, {1});  // an order of so many would not fit anywhere
  EXPECT_EQ(order.steps(), 1'000'000'000'007);
  EXPECT_EQ(order.expert(900'000'000'000), 0u);
  EXPECT_EQ(order.own_step(900'000'000'000), 900'000'000'000);
  EXPECT_EQ(order.done(0, 8), 8);
}

TEST(ExpertOrder, AnExpertWithoutAShareHasNone) {
  ExpertOrder order({.seed = 9, .period = 1, .experts = 2});
  order.extend(500, {0, 1});
  EXPECT_EQ(order.done(0, 500), 0);
  EXPECT_EQ(order.done(1, 500), 500);
}

TEST(ExpertOrder, ACriticHasTheStepsBetweenThoseOfItsStudent) {
  ExpertOrder order({.seed = 3, .experts = 2, .cycle = 3});
  order.extend(4, {0.5, 0.5});
  order.extend(4, {0.1, 0.9});  // a later part of the run goes on in the cycle
  const std::vector<size_t> expected = {0, 1, 1, 0, 1, 1, 0, 1};
  const std::vector<int64_t> own = {1, 1, 2, 2, 3, 4, 3, 5};
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_EQ(order.expert(step), expected[static_cast<size_t>(step - 1)]) << step;
    EXPECT_EQ(order.own_step(step), own[static_cast<size_t>(step - 1)]) << step;
  }
  EXPECT_EQ(order.done(0, 6), 2);
}

}  // namespace
}  // namespace tessera::diffusion
