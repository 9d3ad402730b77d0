#include "tessera/train/step_report.h"

#include <gtest/gtest.h>

#include <csignal>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> reported(double loss, int64_t bad_sample = -1, double stop = 0) {
  StepReport report;
  report.loss = loss;
  report.bad_sample = static_cast<double>(bad_sample + 1);
  report.stop = stop;
  return report.pack();
}

DecisionRules rules(int64_t& updates) {
  DecisionRules r;
  r.step = 7;
  r.rate = 1e-3;
  r.clip_norm = 1;
  r.count_update = [&updates] { return ++updates; };
  r.source = [](int64_t index) { return "clip" + std::to_string(index) + ".mp4"; };
  return r;
}

TEST(Decision, LossIsTheSumOfTheRanksAndTheNormIsClipped) {
  int64_t updates = 4;
  LossScale none;
  const Decision d = decide(4, {reported(0.25), reported(0.5)}, rules(updates), none);
  EXPECT_EQ(d.loss, 0.75);
  EXPECT_EQ(d.norm, 4);
  ASSERT_TRUE(d.control);
  EXPECT_EQ(d.control->step, 5);
  EXPECT_EQ(d.control->lr, 1e-3);
  EXPECT_NEAR(d.control->scale, 0.25, 1e-6);
  EXPECT_TRUE(d.skipped.empty());
  EXPECT_EQ(d.stop, 0);
}

// Gradients still have the loss scale: their norm without it is clipped, and the update takes both off.
TEST(Decision, OfFp16TheNormWithoutTheLossScaleIsClipped) {
  plan::Plan fp16;
  fp16.compute = DType::f16;
  recipe::Recipe::Train train;
  train.loss_scale = 512, train.loss_scale_window = 100;
  for (const double norm : {4.0, 0.5}) {
    int64_t updates = 0;
    LossScale scale(fp16, train);
    const Decision d = decide(norm * 512, {reported(0.25)}, rules(updates), scale);
    EXPECT_EQ(d.norm, norm);
    ASSERT_TRUE(d.control);
    EXPECT_NEAR(d.control->scale * 512, std::min(1.0, 1 / norm), 1e-6) << norm;
  }
}

TEST(Decision, OneRankThatIsAskedToStopStopsAll) {
  int64_t updates = 0;
  LossScale none;
  EXPECT_EQ(decide(1, {reported(1), reported(1, -1, 15)}, rules(updates), none).stop, 15);
}

TEST(Decision, OneRankThatIsAskedToSaveSavesOnAllAndAStopOfAnotherCountsToo) {
  int64_t updates = 0;
  LossScale none;
  const Decision saves = decide(1, {reported(1), reported(1, -1, SIGUSR2), reported(1)}, rules(updates), none);
  EXPECT_TRUE(saves.save);
  EXPECT_EQ(saves.stop, 0);
  const Decision both = decide(1, {reported(1, -1, SIGXCPU), reported(1, -1, SIGUSR2)}, rules(updates), none);
  EXPECT_TRUE(both.save);
  EXPECT_EQ(both.stop, SIGXCPU);
  EXPECT_FALSE(decide(1, {reported(1, -1, SIGPWR)}, rules(updates), none).save);
}

TEST(Decision, ANanEndsTheRunNamingTheSample) {
  int64_t updates = 0;
  LossScale none;
  try {
    decide(1, {reported(1), reported(kNan, 3)}, rules(updates), none);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::not_finite);
    EXPECT_NE(std::string(error.what()).find("step 7"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("sample clip3.mp4"), std::string::npos);
  }
  EXPECT_EQ(updates, 0);
}

TEST(Decision, WhereNansAreSkippedThereIsNoUpdateAndAReason) {
  int64_t updates = 0;
  LossScale none;
  DecisionRules skips = rules(updates);
  skips.skip_not_finite = true;
  const Decision d = decide(kNan, {reported(1)}, skips, none);
  EXPECT_FALSE(d.control);
  EXPECT_NE(d.skipped.find("every sample's own loss was finite"), std::string::npos);
  EXPECT_EQ(updates, 0);
}

TEST(Decision, WhereUpdatesRanInTheBackwardNothingIsLeftToControl) {
  int64_t updates = 0;
  LossScale none;
  DecisionRules made = rules(updates);
  made.updated = true;
  const Decision d = decide(1, {reported(1)}, made, none);
  EXPECT_FALSE(d.control);
  EXPECT_TRUE(d.skipped.empty());
  EXPECT_EQ(updates, 0);
}

}  // namespace
}  // namespace tessera::train
