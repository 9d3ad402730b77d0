// Samples that the last start owes.
#include "tessera/train/sampler.h"

#include "run_test.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class Owed : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    start();
    checkpoint::save_rank(checkpoint::partial_folder(run_->checkpoints, 10), 0, {});
    checkpoint::Manifest manifest;
    manifest.step = 10;
    checkpoint::commit(checkpoint::partial_folder(run_->checkpoints, 10),
                       checkpoint::step_folder(run_->checkpoints, 10), 1, manifest);
  }
  bool owes(plan::RunShape run) { return owes_samples(start(), run); }
  void sampled(int prompt) {
    const fs::path file = sample::Validation::file(out(), 10, prompt);
    write(fs::relative(file, folder_), "mp4");
    run_->log()->sample({.step = 10, .prompt = prompt, .file = file.filename(), .text = "a cat"});
    run_->log()->flush();
  }
  plan::RunShape every(int64_t steps) const {
    plan::RunShape run;
    run.steps = 100, run.sample_every = steps, run.sample_prompts = 2;
    return run;
  }
};

TEST_F(Owed, AllOfTheirPromptsAndNoneThatAreThere) {
  EXPECT_TRUE(owes(every(5)));
  sampled(0);
  EXPECT_TRUE(owes(every(5))) << "the second prompt's is missing";
  sampled(1);
  EXPECT_FALSE(owes(every(5)));
  fs::remove(sample::Validation::file(out(), 10, 1));
  EXPECT_TRUE(owes(every(5))) << "a line without its file";
}

TEST_F(Owed, AFileWithoutItsLineIsMadeAgain) {
  sampled(0);
  write(fs::relative(sample::Validation::file(out(), 10, 1), folder_), "mp4");
  EXPECT_TRUE(owes(every(10)));
}

TEST_F(Owed, OnlyOfStepsThatHaveSamples) {
  EXPECT_FALSE(owes(every(0)));
  EXPECT_FALSE(owes(every(4)));
  plan::RunShape last = every(4);
  last.steps = 10;
  EXPECT_TRUE(owes(last)) << "the last step has some";
}

TEST_F(Owed, NoneWhereTheRunBeginsElsewhere) {
  settings_.resume = "no";
  EXPECT_FALSE(owes(every(5)));
}

}  // namespace
}  // namespace tessera::train
