// What a run knows of its own health: steps that are skipped, the start before it, and the way back that its user is told.
#include <cmath>

#include "run_test.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class HealthOf : public RunTest {
 protected:
  Health& begin() {
    start();
    health_.emplace(*run_, settings_, stages_, experts_, [](int64_t step, const std::string& why, double lr) {
      return Divergence{step, why, lr, {{"train.lr", "1e-3"}}, {}, "data"};
    });
    return *health_;
  }
  void skip(int64_t step, bool overflow = false) {
    Decision d = decision(std::nan(""), "loss nan");
    d.overflow = overflow;
    health_->before();
    EXPECT_EQ(health_->weigh(pass(step), d), std::nullopt);
    health_->after(step);
  }
  void finite(int64_t step, double loss = 1) {
    health_->before();
    EXPECT_NE(health_->weigh(pass(step), decision(loss)), std::nullopt);
    health_->after(step);
  }
  std::optional<Health> health_;
};

TEST_F(HealthOf, ARunThatOnlySkipsEndsAfterAHundredStepsAndSaysWhereItBegan) {
  begin();
  for (int64_t step = 1; step <= 99; ++step) skip(step);
  try {
    skip(100);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::not_finite);
    EXPECT_NE(std::string(error.what()).find("100 steps in a row were skipped, the last at step 100: loss nan"),
              std::string::npos);
  }
  const auto noted = read_divergence(out());
  ASSERT_TRUE(noted);
  EXPECT_EQ(noted->step, 1);
  EXPECT_FALSE(noted->skipping);
  EXPECT_EQ(noted->why.find(';'), std::string::npos) << "the hint is of this start: " << noted->why;
}

TEST_F(HealthOf, AFiniteStepBetweenBeginsTheCountAnew) {
  begin();
  for (int64_t step = 1; step <= 99; ++step) skip(step);
  EXPECT_EQ(health_->doubt(), "the last 99 steps were skipped");
  finite(100);
  EXPECT_EQ(health_->doubt(), "");
  for (int64_t step = 101; step <= 199; ++step) skip(step);
  for (int64_t step = 200; step <= 320; ++step) skip(step, /*overflow=*/true);  // no fault, and counts for nothing
}

TEST_F(HealthOf, WhileItSkipsTheNextStartIsToldAndAFiniteStepTakesThatBack) {
  begin();
  skip(7);
  ASSERT_TRUE(read_divergence(out()));
  EXPECT_TRUE(read_divergence(out())->skipping);
  EXPECT_EQ(read_divergence(out())->step, 7);
  EXPECT_EQ(read_divergence(out())->lr, 1e-3);
  finite(8);
  EXPECT_FALSE(read_divergence(out()));
}

TEST_F(HealthOf, TheSkippedExpertIsNamed) {
  experts_.list = {{.name = "high_noise"}, {.name = "low_noise"}};
  begin();
  health_->before();
  health_->weigh(pass(1, 1), decision(std::nan(""), "loss nan"));
  health_->after(1);
  health_->before();
  health_->weigh(pass(2, 0), decision(1));
  health_->after(2);
  EXPECT_EQ(health_->doubt(), "the last step of the low_noise expert was skipped");
  EXPECT_EQ(health_->end(2, ""), Exit::not_finite) << "its weights are not worth exporting";
}

TEST_F(HealthOf, NothingIsExportedOfARunThatLearnedNothing) {
  begin();
  for (int64_t step = 1; step <= 3; ++step) skip(step);
  EXPECT_EQ(health_->end(3, ""), Exit::not_finite);
  EXPECT_TRUE(told("every step was skipped, so nothing was learned")) << lines();
  EXPECT_EQ(read_divergence(out())->step, 1) << "the first of those at the end";
  begin();
  finite(1);
  EXPECT_EQ(health_->end(1, ""), Exit::done);
  EXPECT_EQ(health_->end(1, "rank 0 has weights that are not finite"), Exit::not_finite);
}

TEST_F(HealthOf, AStartThatWouldDoTheSameIsRefusedAndOneOfAnotherRateGoesOn) {
  fs::create_directories(out());
  write_divergence(out(), {5, "loss nan", 1e-3, {{"train.lr", "1e-3"}}, {}, "data"});
  const auto data = [] { return std::string("data"); };
  begin();
  EXPECT_TRUE(health_->goes_back({{"train.lr", "1e-3"}}));
  run_->choose("auto", /*back=*/true);
  try {
    health_->require_other_course({{"train.lr", "1e-3"}}, data);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::not_finite);
    EXPECT_NE(std::string(error.what()).find("the run ended at step 5"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--train.lr 0.0005"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(health_->require_other_course({{"train.lr", "1e-4"}}, data)) << "the folder has chosen already";
  EXPECT_EQ(health_->why_back(), "step 5 was not finite, and train.lr has changed since");
  health_->forget();
  EXPECT_FALSE(read_divergence(out()));
}

TEST_F(HealthOf, OneThatOnlySkippedMayGoOnAndGoesBackWhereTheDataAreOthers) {
  fs::create_directories(out());
  write_divergence(out(), {5, "loss nan", 1e-3, {{"train.lr", "1e-3"}}, {}, "data", /*skipping=*/true});
  begin();
  EXPECT_FALSE(health_->goes_back({{"train.lr", "1e-3"}}));
  EXPECT_FALSE(health_->require_other_course({{"train.lr", "1e-3"}}, [] { return std::string("data"); }));
  health_->forget();
  EXPECT_TRUE(read_divergence(out())) << "as long as no step is finite";
  EXPECT_TRUE(health_->require_other_course({{"train.lr", "1e-3"}}, [] { return std::string("others"); }))
      << "the folder is to choose again";
  health_->forget();
  EXPECT_FALSE(read_divergence(out()));
}

TEST_F(HealthOf, TheWayBackNamesWhatIsProvedAndTheCommandsOfTheLaunch) {
  start();
  comm::Rendezvous place;
  EXPECT_EQ(way_back(settings_, {}, place, 9, 1e-3),
            "no checkpoint was written yet; go on from the start with a lower rate: tessera train " +
                (out() / "recipe.toml").string() +
                " --run.resume no --train.lr 0.0005; or with another seed: tessera train " +
                (out() / "recipe.toml").string() + " --run.resume no --run.seed 1 --run.resume_changes allow");
  const fs::path saved = checkpoint::step_folder(out() / "checkpoints", 4);
  write(fs::relative(saved / "manifest.json", folder_), "{}");
  EXPECT_EQ(newest_proved(out() / "checkpoints"), "no checkpoint is proved, by a finite step that began from it");
  checkpoint::prove(saved);
  EXPECT_EQ(newest_proved(out() / "checkpoints"), "the newest proved checkpoint is " + saved.string());
  place.world = 4, place.local_world = 2;
  const std::vector<recipe::Stage> stages = {{3, {{"train.lr", "1e-4"}}}, {8, {{"data.repeats", "2"}}}};
  const std::string text = way_back(settings_, stages, place, 9, 1e-4);
  EXPECT_NE(
      text.find("go on from it with a lower train.lr in the [[stage]] from step 3 on: tessera launch -n 2 ... train"),
      std::string::npos)
      << text;
  EXPECT_EQ(text.find("--train.lr"), std::string::npos) << "a flag would not reach the stage: " << text;
  EXPECT_NE(text.find("--run.resume " + saved.string()), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::train
