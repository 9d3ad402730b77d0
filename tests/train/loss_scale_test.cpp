// The loss scale of a run: where there is one, with the recipe's numbers, and over a stop.
#include "tessera/train/step_report.h"

#include <gtest/gtest.h>

#include "tessera/checkpoint/training.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {
namespace {

recipe::Recipe::Train settings_of(double scale, int64_t window) {
  recipe::Recipe::Train settings;
  settings.loss_scale = scale, settings.loss_scale_window = window;
  return settings;
}
plan::Plan plan_of(DType compute, DType reduce) {
  plan::Plan plan;
  plan.compute = compute, plan.reduce = reduce;
  return plan;
}

TEST(RunsLossScale, IsThereWhereAnythingIsFp16) {
  const recipe::Recipe::Train recipe = settings_of(1024, 3);
  EXPECT_FALSE(LossScale(plan_of(DType::f32, DType::f32), recipe).scale());
  EXPECT_FALSE(LossScale(plan_of(DType::bf16, DType::bf16), recipe).scale());
  EXPECT_EQ(LossScale(plan_of(DType::f16, DType::f32), recipe).scale(), 1024.0);
  EXPECT_EQ(LossScale(plan_of(DType::f32, DType::f16), recipe).scale(), 1024.0) << "sums of fp16 overflow too";
  EXPECT_FALSE(LossScale().scale());
}

TEST(RunsLossScale, GrowsAfterTheRecipesWindowAndGoesOnInItAfterAStop) {
  for (const int64_t window : {2, 5}) {
    LossScale through(plan_of(DType::f16, DType::f32), settings_of(64, window));
    int64_t good = 0;
    double expected = 64;
    for (int64_t step = 1; step <= 12; ++step) {
      const bool finite = step != 4;
      LossScale resumed(plan_of(DType::f16, DType::f32), settings_of(8, window));
      checkpoint::Manifest manifest;
      through.save(manifest);
      resumed.restore(manifest);
      EXPECT_EQ(through.end_step(step, finite).empty(), finite);
      resumed.end_step(step, finite);
      good = finite ? good + 1 : 0;
      if (!finite) expected /= 2;
      if (good == window) expected *= 2, good = 0;
      EXPECT_EQ(through.scale(), expected) << "window " << window << ", step " << step;
      EXPECT_EQ(resumed.scale(), through.scale()) << "a stop before step " << step;
    }
  }
}

}  // namespace
}  // namespace tessera::train
