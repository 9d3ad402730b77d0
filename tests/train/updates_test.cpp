#include "tessera/train/updates.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/checkpoint/training.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {
namespace {

using Totals = std::vector<net::Totals>;

StepSize size_of(plan::Optimizer optimizer, size_t experts) {
  recipe::Recipe::Train train;
  train.d0 = 0.5;
  return {optimizer, train, experts};
}

TEST(StepSize, FollowsFromTheTotalsOfAllRanksAndIsEachExpertsOwn) {
  StepSize size = size_of(plan::Optimizer::prodigy, 2);
  EXPECT_FALSE(size.pending());
  size.take(Totals{{9, 1}});
  EXPECT_EQ(size.of(1), 0.5) << "no update was made";
  EXPECT_EQ(size.armed(1, {1, 1, 1}).d, 0.5);
  EXPECT_TRUE(size.pending());
  size.take(Totals{{1, 0.5}, {3, 1.5}});  // 0.5 * 4 / 2
  EXPECT_FALSE(size.pending());
  EXPECT_EQ(size.of(1), 1.0);
  EXPECT_EQ(size.of(0), 0.5);
}

TEST(StepSize, IsResumedAndOthersHaveNone) {
  StepSize size = size_of(plan::Optimizer::prodigy, 1), other = size;
  size.armed(0, {1, 1, 1});
  size.take(Totals{{4, 2}});
  checkpoint::Manifest manifest;
  size.save(manifest);
  other.restore(manifest);
  for (StepSize* s : {&size, &other}) {
    EXPECT_EQ(s->of(0), 1.0);
    s->armed(0, {2, 1, 1});
    s->take(Totals{{4, 2}});
  }
  EXPECT_EQ(size.of(0), other.of(0));
  EXPECT_GT(*size.of(0), 1.0) << "the sums so far count as well";
  EXPECT_THROW(size_of(plan::Optimizer::prodigy, 1).restore({}), UserError);

  StepSize none = size_of(plan::Optimizer::adamw, 1);
  EXPECT_FALSE(none.of(0));
  EXPECT_EQ(none.armed(0, {1, 1, 1}).d, 0);
  none.restore({});
}

// Below its largest estimate d rises at its rate, whatever the estimates of now are: so a stop must not forget that one.
TEST(StepSize, OfABoundedGrowthRisesAfterAStopToTheLargestEstimateOfBefore) {
  recipe::Recipe::Train settings;
  settings.growth_rate = 1.5;
  StepSize through(plan::Optimizer::prodigy, settings, 1), resumed(plan::Optimizer::prodigy, settings, 1);
  const std::vector<net::Totals> steep = {{400, 2}}, none = {{0, 1e6}};
  for (int64_t step = 1; step <= 3; ++step) through.armed(0, {step, 1, 1}), through.take(step < 3 ? steep : none);
  checkpoint::Manifest manifest;
  through.save(manifest);
  resumed.restore(manifest);
  const double before = *through.of(0);
  for (int64_t step = 4; step <= 6; ++step)
    for (StepSize* each : {&through, &resumed}) each->armed(0, {step, 1, 1}), each->take(none);
  EXPECT_EQ(resumed.of(0), through.of(0));
  EXPECT_GT(*through.of(0), before);
}

}  // namespace
}  // namespace tessera::train
