// The learning rates of the published training line: 150,000 steps, 10,000 of warm-up to 2.5e-5, then a cosine down to a
// tenth of it.
#include <gtest/gtest.h>

#include "tessera/recipe/lr_schedule.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::recipe {
namespace {

TEST(PublishedSchedule, HasTheRatesOfTheRunAfter10000And80000And150000Steps) {
  // the keys that the line is imported as: tests/tools/import_test.cpp
  const Recipe recipe = load_recipe("", {{"run.steps", "150000"},
                                         {"train.lr", "2.5e-5"},
                                         {"train.schedule", "cosine_min"},
                                         {"train.eta_min", "2.5e-06"},
                                         {"train.warmup_steps", "10000"}});
  const auto after = [&](int64_t steps) { return recipe::learning_rate(recipe.lr_schedule, steps); };
  EXPECT_EQ(after(0), 0);
  EXPECT_NEAR(after(5000), 1.25e-5, 1e-20);
  EXPECT_NEAR(after(10000), 2.5e-5, 1e-20) << "the end of the warm-up";
  EXPECT_NEAR(after(80000), (2.5e-5 + 2.5e-6) / 2, 1e-20) << "half of the cosine";
  EXPECT_NEAR(after(150000), 2.5e-6, 1e-20);
}

}  // namespace
}  // namespace tessera::recipe
