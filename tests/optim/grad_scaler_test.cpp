#include "tessera/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::optim {
namespace {

TEST(GradScaler, GrowsAfterAnIntervalOfWholeStepsAndBacksOffAtOnce) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  EXPECT_TRUE(scaler.update(true));
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_EQ(scaler.growth_tracker(), 0);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_FALSE(scaler.update(false)) << "a step with an infinite gradient is skipped";
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.growth_tracker(), 0);
}

TEST(GradScaler, NeverGrowsToInfinity) {
  GradScaler scaler({.init_scale = 3e38f, .growth_interval = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 3e38f);
  EXPECT_EQ(scaler.growth_tracker(), 0);
}

TEST(GradScaler, GoesOnFromItsState) {
  GradScaler one({.growth_interval = 4}), other({.growth_interval = 4});
  for (const bool finite : {true, true, false, true, true}) one.update(finite);
  other.restore(one.state());
  for (const bool finite : {true, true, false, true}) {
    one.update(finite), other.update(finite);
    EXPECT_EQ(one.state(), other.state());
  }
}

TEST(GradScaler, RefusesFactorsThatDoNotGrowOrBackOff) {
  try {
    GradScaler scaler({.growth_factor = 0.5});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("growth_factor = 0.5"), std::string::npos) << error.what();
  }
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), UserError);
  EXPECT_THROW(GradScaler({.init_scale = 0}), UserError);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), UserError);
}

}  // namespace
}  // namespace tessera::optim
