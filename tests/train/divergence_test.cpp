#include "tessera/train/divergence.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "folder_test.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::train {
namespace {

TEST(Spikes, AreAboveManyTimesTheMedianOnceThereIsOne) {
  Spikes spikes(50, 1);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(spikes.step(0, 1.0 + 0.1 * i, 2), "") << i;
  EXPECT_EQ(spikes.step(0, 1e6, 2), "") << "of seven steps there is no median";
  EXPECT_EQ(spikes.step(0, 60, 90), "") << "below 50 times 1.4, and 50 times 2";
  EXPECT_EQ(spikes.step(0, 90, 2), "loss 90 is 64.3 times its running median");
  EXPECT_EQ(spikes.step(0, 1, 200), "gradient norm 200 is 100 times its running median");
  EXPECT_NE(spikes.step(0, 1e9, 1e9).find("loss 1e+09 is 7.14e+08 times its running median, gradient norm"),
            std::string::npos);
}

TEST(Spikes, DoNotBecomeWhatIsUsual) {
  Spikes spikes(50, 1);
  for (int i = 0; i < 20; ++i) spikes.step(0, 1, 1);
  for (int i = 0; i < 500; ++i) EXPECT_NE(spikes.step(0, 1000, 1), "") << i;
  EXPECT_EQ(spikes.step(0, 1.5, 1), "");
}

TEST(Spikes, TheMedianRunsWithTheSteps) {
  Spikes spikes(50, 1);
  double loss = 1;
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(spikes.step(0, loss *= 1.01, 1), "") << i;
  EXPECT_GT(loss, 1e8);
  EXPECT_NE(spikes.step(0, loss * 80, 1), "");
}

TEST(Spikes, OfExpertsAreToldApart) {
  Spikes spikes(50, 2);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(spikes.step(0, 1, 1), "");
    EXPECT_EQ(spikes.step(1, 1000, 1), "");
  }
  EXPECT_NE(spikes.step(0, 1000, 1), "");
}

TEST(Spikes, OfALimitOfZeroAreNone) {
  Spikes spikes(0, 1);
  for (int i = 0; i < 20; ++i) spikes.step(0, 1, 1);
  EXPECT_EQ(spikes.step(0, 1e30, 1e30), "");
  checkpoint::Manifest manifest;
  spikes.save(manifest);
  EXPECT_TRUE(manifest.extra.empty());
}

TEST(Spikes, ARunThatGoesOnKnowsWhatWasUsual) {
  Spikes before(50, 2), after(50, 2), other(50, 1);
  for (int i = 0; i < 100; ++i) before.step(1, 1.0 / (1 + i), 3);
  checkpoint::Manifest manifest;
  before.save(manifest);
  after.restore(manifest);
  for (const double loss : {1.0, 0.5, 0.8, 2.0}) EXPECT_EQ(after.step(1, loss, 3), before.step(1, loss, 3)) << loss;
  EXPECT_NE(after.step(1, 2, 3), "");
  other.restore(manifest);
  EXPECT_EQ(other.step(0, 1e9, 3), "") << "of another number of experts";
  manifest.extra["spikes"] = "strange";
  Spikes strange(50, 2);
  strange.restore(manifest);
  EXPECT_EQ(strange.step(1, 2, 3), "");
}

class Diverged : public FolderTest {
 protected:
  static Divergence example() {
    return {13,
            "loss nan",
            1e-3,
            {{"train.betas", "0.9,0.999"},
             {"train.lr", "1e-3"},
             {"train.micro_batch", "auto"},
             {"run.steps", "100"},
             {"train.schedule", "constant"},
             {"mesh.tp", "1"},
             {"data.path", "clips"},
             {"stage 1: from", "12"},
             {"stage 1: train.lr", "1"}},
            {{"train.lr", "1e-3"}, {"train.micro_batch", "2"}, {"data.vae", "wan"}},
            "digest"};
  }
  static std::string with(const std::string& key, const std::string& value) {
    Values now = example().recipe;
    now[key] = value;
    return other_course(example(), now, "digest");
  }
};

TEST_F(Diverged, IsReadBackAsItWasWritten) {
  EXPECT_FALSE(read_divergence(folder_));
  Divergence written = example();
  written.why = "loss nan, sample \xff.mp4";
  write_divergence(folder_, written);
  const auto read = read_divergence(folder_);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->step, 13);
  EXPECT_EQ(read->lr, 1e-3);
  EXPECT_EQ(read->recipe, written.recipe);
  EXPECT_EQ(read->filled, written.filled);
  EXPECT_EQ(read->data, "digest");
  EXPECT_EQ(other_course(*read, written.recipe, "digest"), "");
  forget_divergence(folder_);
  EXPECT_FALSE(read_divergence(folder_));
  for (const char* strange : {"", "[]", "{\"step\": \"x\"}", "{"}) {
    write("diverged.json", strange);
    if (const auto any = read_divergence(folder_))
      EXPECT_NE(other_course(*any, example().recipe, "digest"), "") << strange;
  }
}

TEST_F(Diverged, AChangedCourseIsToldFromChangesBesideIt) {
  EXPECT_EQ(with("train.lr", "0.001"), "") << "the same number";
  EXPECT_EQ(with("train.betas", "0.90,0.999"), "") << "a list of the same";
  EXPECT_EQ(with("train.betas", "0.9"), "train.betas");
  EXPECT_EQ(with("train.micro_batch", "2"), "") << "what was chosen, written down";
  EXPECT_EQ(with("data.vae", "wan"), "");
  for (const char* beside : {"mesh.tp", "checkpoint.keep", "sample.every", "fault.timeout", "plan.recompute", "run.out",
                             "run.spike", "data.cache", "train.micro_batch", "stage 1: sample.every"})
    EXPECT_EQ(with(beside, "7"), "") << beside;
  for (const char* course :
       {"train.lr", "train.clip_norm", "train.betas", "train.global_batch", "train.schedule", "data.path",
        "data.repeats", "diffusion.shift", "run.seed", "run.on_nan", "plan.compute_dtype", "plan.masters",
        "stage 1: train.lr", "stage 1: from", "stage 2: train.lr", "train.optimizer"})
    EXPECT_EQ(with(course, "7"), course) << course;
  EXPECT_EQ(other_course(example(), example().recipe, "another"), "the data");
  Values without = example().recipe;
  without.erase("stage 1: train.lr");
  EXPECT_EQ(other_course(example(), without, "digest"), "stage 1: train.lr");
}

TEST_F(Diverged, AnotherNumberOfStepsMattersWhereTheRateDependsOnItOrTheStepIsNotReached) {
  EXPECT_EQ(with("run.steps", "200"), "");
  EXPECT_EQ(with("run.steps", "13"), "");
  EXPECT_EQ(with("run.steps", "12"), "run.steps");
  Divergence cosine = example();
  cosine.recipe["train.schedule"] = "cosine";
  Values longer = cosine.recipe;
  EXPECT_EQ(other_course(cosine, longer, "digest"), "");
  longer["run.steps"] = "200";
  EXPECT_EQ(other_course(cosine, longer, "digest"), "run.steps");
}

}  // namespace
}  // namespace tessera::train
