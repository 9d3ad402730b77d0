// Learning rates by the formulas of the trainers that have them, with other numbers than the usual ones.
#include "tessera/recipe/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tessera/base/check.h"

namespace tessera::recipe {
namespace {

constexpr double kLr = 0.4;

/// A run of 100 steps with 20 of warm-up.
LrSchedule named(const std::string& name) { return {.name = name, .lr = kLr, .total_steps = 100, .warmup_steps = 20}; }
double cosine(double part) { return 0.5 * (1 + std::cos(std::numbers::pi * part)); }

void expect_rates(const LrSchedule& s, const std::vector<std::pair<int64_t, double>>& rates) {
  for (const auto& [step, rate] : rates)
    EXPECT_NEAR(learning_rate(s, step), rate, 1e-15) << s.name << ", step " << step;
}

TEST(Schedule, RatesOfDiffusersFollowItsFormulas) {
  expect_rates(named("constant"), {{0, kLr}, {10, kLr}, {100, kLr}});
  expect_rates(named("constant_with_warmup"), {{0, 0}, {5, kLr / 4}, {20, kLr}, {100, kLr}});
  expect_rates(named("linear"), {{0, 0}, {5, kLr / 4}, {20, kLr}, {40, 0.75 * kLr}, {100, 0}, {120, 0}});
  expect_rates(named("cosine"), {{5, kLr / 4}, {20, kLr}, {40, kLr * cosine(0.25)}, {60, kLr / 2}, {100, 0}});
  LrSchedule restarts = named("cosine_with_restarts");
  expect_rates(restarts, {{5, kLr / 4}, {40, kLr * cosine(0.25)}, {60, kLr / 2}, {100, 0}});
  restarts.num_cycles = 4;
  expect_rates(restarts, {{5, kLr / 4}, {25, kLr * cosine(0.25)}, {30, kLr / 2}, {40, kLr}, {50, kLr / 2}, {100, 0}});
  LrSchedule power = named("polynomial");  // down to 1e-7
  expect_rates(power, {{5, kLr / 4}, {60, (kLr - 1e-7) / 2 + 1e-7}, {100, 1e-7}, {101, 1e-7}});
  power.power = 3;
  expect_rates(power, {{5, kLr / 4}, {20, kLr}, {60, (kLr - 1e-7) / 8 + 1e-7}, {100, 1e-7}});
}

TEST(Schedule, CosinesEndAtTheLeastRate) {
  for (const char* name : {"cosine_min", "torch_linear_then_cosine"}) {
    LrSchedule s = named(name);
    expect_rates(s, {{60, kLr / 2}, {100, 0}});
    s.eta_min = 0.1;
    expect_rates(s, {{20, kLr}, {40, 0.1 + 0.3 * cosine(0.25)}, {60, 0.25}, {100, 0.1}});
  }
  expect_rates(named("cosine_min"), {{0, 0}, {5, kLr / 4}});
  LrSchedule torch = named("torch_linear_then_cosine");  // LinearLR begins at a hundredth
  expect_rates(torch, {{0, 0.01 * kLr}, {5, kLr * (0.01 + 0.99 / 4)}});
  torch.start_factor = 0.2;
  expect_rates(torch, {{0, 0.2 * kLr}, {5, 0.4 * kLr}, {10, 0.6 * kLr}, {20, kLr}});
}

TEST(Schedule, WsdWarmsUpStaysAndFallsFromAndToTheLeastRate) {
  LrSchedule s = named("wsd");
  s.stable_steps = 30, s.decay_steps = 40;
  expect_rates(
      s, {{0, 0}, {10, kLr / 2}, {20, kLr}, {49, kLr}, {60, kLr * cosine(0.25)}, {70, kLr / 2}, {90, 0}, {99, 0}});
  s.min_lr_ratio = 0.25;
  expect_rates(s, {{0, kLr / 4},
                   {10, kLr * 0.625},
                   {20, kLr},
                   {49, kLr},
                   {60, kLr * (0.25 + 0.75 * cosine(0.25))},
                   {70, kLr * 0.625},
                   {90, kLr / 4},
                   {99, kLr / 4}});
}

TEST(Schedule, OpenSorasWarmUpBeginsAStepBehindItsFirstRate) {
  LrSchedule s = named("opensora_linear_warmup");  // from 1e-6
  s.warmup_steps = 3;
  expect_rates(s, {{0, 1e-6 + (kLr - 1e-6) / 4}, {2, 1e-6 + (kLr - 1e-6) * 0.75}, {3, kLr}, {100, kLr}});
  s.initial_lr = 0.2;
  expect_rates(s, {{0, 0.25}, {1, 0.3}, {2, 0.35}, {3, kLr}});
}

TEST(Schedule, OfAnUnknownNameIsRefusedWithTheNearest) {
  try {
    learning_rate(named("cosin"), 1);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("'cosine'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::recipe
