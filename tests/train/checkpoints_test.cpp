// What is saved, what is proved, and what stays: of a run whose steps are decisions and whose weights are a few numbers.
#include "tessera/train/checkpoints.h"

#include <cmath>
#include <limits>

#include "run_test.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// Steps 1 to 10 are of expert 0, 11 to 20 of expert 1, and so on.
size_t by_tens(int64_t step) { return static_cast<size_t>((step - 1) / 10 % 2); }

TEST(Proofs, ACheckpointWaitsForAStepOfEachExpertThatWasTrainedSinceTheOneBefore) {
  Proofs proofs(2, /*gated=*/false, 40, by_tens);
  proofs.trained(0, false), proofs.trained(1, false);
  proofs.saved(proofs.next("step-000020", 20));
  EXPECT_TRUE(proofs.take_proved().empty());
  proofs.trained(0, false);
  EXPECT_TRUE(proofs.take_proved().empty()) << "expert 1 has made no step from it";
  proofs.trained(1, false);
  const auto proved = proofs.take_proved();
  ASSERT_EQ(proved.size(), 1u);
  EXPECT_EQ(proved[0].checkpoint, "step-000020");
  EXPECT_TRUE(proofs.take_proved().empty()) << "it is told once";
}

TEST(Proofs, ASpikeTakesAwayEveryCheckpointThatWaitsForItsExpert) {
  Proofs proofs(2, false, 40, by_tens);
  proofs.trained(0, false);
  proofs.saved(proofs.next("step-000005", 5));
  proofs.trained(0, true);
  EXPECT_TRUE(proofs.take_proved().empty());
  proofs.trained(0, false);
  EXPECT_TRUE(proofs.take_proved().empty()) << "a later step began from weights behind the spike";
}

TEST(Proofs, AnExpertThatMakesNoStepAnyMoreIsNotWaitedFor) {
  Proofs proofs(2, false, 20, by_tens);
  proofs.trained(0, false);
  proofs.saved(proofs.next("step-000010", 10));  // its last turn
  proofs.trained(1, false);
  const Proofs::Waiting next = proofs.next("step-000015", 15);
  EXPECT_EQ(next.experts, std::set<size_t>{1}) << "expert 0 has no step from 16 to 20";
}

TEST(Proofs, BehindAGateAnyExpertMayComeAgain) {
  Proofs proofs(2, /*gated=*/true, 20, [](int64_t) { return 0; });
  proofs.trained(1, false);
  proofs.saved(proofs.next("step-000010", 10));
  EXPECT_EQ(proofs.next("step-000020", 20).experts, std::set<size_t>{1});
}

class Saved : public RunTest {
 protected:
  void begin(std::function<size_t(int64_t)> expert_of = [](int64_t) { return 0; }) {
    start();
    proofs_.emplace(experts_.size(), false, settings_.steps, std::move(expert_of));
    health_.emplace(*run_, settings_, stages_, experts_, [](int64_t step, const std::string& why, double lr) {
      return Divergence{step, why, lr, {}, {}, ""};
    });
    checkpoints_.emplace(
        *run_, *health_, *proofs_,
        Checkpoints::Contents{
            .run = [](int64_t, const auto& write, const auto& commit) { write(), commit(); },
            .settle = [this] { events_ += "settle "; },
            .pieces =
                [this] {
                  return std::vector<checkpoint::Piece>{
                      {{"w", "param", DType::f32, {static_cast<int64_t>(weights_.size())}}, weights_.data()}};
                },
            .describe = [](int64_t, checkpoint::Manifest& manifest) { manifest.extra["model"] = "toy"; },
            .beside = [this](int64_t,
                             const fs::path& partial) { events_ += fs::exists(partial) ? "beside " : "nothing "; },
            .behind =
                [this](int64_t, const fs::path& saved) {
                  events_ += fs::exists(saved / "manifest.json") ? "behind " : "early ";
                }});
    checkpoints_->begin_part({.every = 0, .keep = keep_, .keep_exports = 0, .exported = ""});
  }

  void step(int64_t step, const Decision& decision, size_t expert = 0) {
    health_->before();
    if (const auto spike = health_->weigh(pass(step, expert), decision)) proofs_->trained(expert, *spike);
    health_->after(step);
    checkpoints_->after(step);
  }
  bool there(int64_t step) const { return fs::exists(checkpoint::step_folder(out() / "checkpoints", step)); }
  bool proved(int64_t step) const {
    return checkpoint::is_proved(checkpoint::step_folder(out() / "checkpoints", step));
  }

  int64_t keep_ = 1;
  std::vector<float> weights_ = {1, 2, 3};
  std::string events_;
  std::optional<Proofs> proofs_;
  std::optional<Health> health_;
  std::optional<Checkpoints> checkpoints_;
};

TEST_F(Saved, IsWholeWithWhatItIsOfAndTheHistorySaysSo) {
  begin();
  step(1, decision(1));
  checkpoints_->save(1);
  EXPECT_EQ(checkpoints_->unsaved(), "");
  EXPECT_EQ(events_, "settle beside behind ");
  checkpoint::TrainingCheckpoint saved(checkpoint::step_folder(out() / "checkpoints", 1));
  EXPECT_EQ(saved.manifest().step, 1);
  EXPECT_EQ(saved.manifest().extra.at("model"), "toy");
  std::vector<float> read(3);
  saved.read({"w", "param", DType::f32, {3}}, read.data());
  EXPECT_EQ(read, weights_);
  EXPECT_TRUE(told("step-000001")) << lines();
}

TEST_F(Saved, IsProvedByTheNextFiniteStepAndOnlyThenGivesWayToANewerOne) {
  begin();
  step(1, decision(1));
  checkpoints_->save(1);
  EXPECT_FALSE(proved(1));
  step(2, decision(1));
  EXPECT_TRUE(proved(1));
  checkpoints_->save(2);
  EXPECT_TRUE(there(1)) << "the newest proved one stays, beyond keep = 1";
  step(3, decision(1));
  EXPECT_TRUE(proved(2));
  EXPECT_FALSE(there(1));
}

TEST_F(Saved, IsNotProvedByASkippedStepNorByASpike) {
  begin();
  for (int64_t s = 1; s <= 20; ++s) step(s, decision(1));
  checkpoints_->save(20);
  step(21, decision(std::nan(""), "loss nan"));
  EXPECT_FALSE(proved(20));
  step(22, decision(1e6));
  EXPECT_FALSE(proved(20));
  EXPECT_TRUE(told("spike")) << lines();
  step(23, decision(1));
  EXPECT_FALSE(proved(20)) << "that step began behind the spike";
}

TEST_F(Saved, NotWhileStepsAreSkipped) {
  begin();
  step(1, decision(1));
  checkpoints_->save(1);
  step(2, decision(std::nan(""), "loss nan")), step(3, decision(std::nan(""), "loss nan"));
  checkpoints_->save(3);
  EXPECT_EQ(checkpoints_->unsaved(), "the last 2 steps were skipped");
  EXPECT_FALSE(there(3));
  EXPECT_TRUE(told("no checkpoint is saved: the last 2 steps were skipped")) << lines();
  step(4, decision(1));
  checkpoints_->save(4);
  EXPECT_EQ(checkpoints_->unsaved(), "");
  EXPECT_TRUE(there(4));
}

TEST_F(Saved, OverflowsOfTheLossScaleAreNoReasonNotTo) {
  begin();
  Decision overflow = decision(1, "gradients overflowed");
  overflow.overflow = true;
  step(1, overflow);
  checkpoints_->save(1);
  EXPECT_EQ(checkpoints_->unsaved(), "");
}

TEST_F(Saved, NotWithValuesThatAreNotFiniteOfWhichNothingIsWritten) {
  begin();
  step(1, decision(1));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    weights_[1] = bad;
    checkpoints_->save(1);
    EXPECT_EQ(checkpoints_->unsaved(), "rank 0 has weights or states that are not finite");
    EXPECT_FALSE(there(1));
    EXPECT_EQ(events_.find("beside"), std::string::npos);
  }
  EXPECT_EQ(health_->end(1, checkpoints_->unsaved()), Exit::not_finite);
}

TEST_F(Saved, LooksAtTheWeightsWithoutSavingThem) {
  begin();
  checkpoints_->look(5);
  EXPECT_EQ(checkpoints_->unsaved(), "");
  EXPECT_FALSE(there(5));
  weights_[0] = std::nanf("");
  checkpoints_->look(5);
  EXPECT_NE(checkpoints_->unsaved(), "");
}

TEST_F(Saved, AnExpertsUntestedTurnIsKnownToTheNextStart) {
  experts_.list = {{.name = "high"}, {.name = "low"}};
  keep_ = 0;
  begin(by_tens);
  step(10, decision(1), 0);
  checkpoints_->save(10);
  for (int64_t s = 11; s <= 12; ++s) step(s, decision(1), 1);
  checkpoints_->save(12);
  EXPECT_FALSE(proved(10)) << "it waits for the high-noise expert";
  begin(by_tens);
  const fs::path own = checkpoint::step_folder(out() / "checkpoints", 12);
  ASSERT_EQ(run_->resume().from, own);
  proofs_->restore(run_->resumed()->manifest(), own, 12);
  step(13, decision(1), 1);
  EXPECT_FALSE(proved(10));
  EXPECT_FALSE(proved(12));
  step(21, decision(1), 0);
  EXPECT_TRUE(proved(10));
  EXPECT_TRUE(proved(12));
}

TEST_F(Saved, WhatWasUsualIsInItSoThatASpikeIsSeenRightAfterAStop) {
  begin();
  for (int64_t i = 1; i <= 10; ++i) step(i, decision(1));
  checkpoints_->save(10);
  const checkpoint::TrainingCheckpoint saved(checkpoint::step_folder(out() / "checkpoints", 10));
  begin();
  health_->restore(saved.manifest());
  health_->before();
  EXPECT_EQ(health_->weigh(pass(11), decision(1000)), true);
}

}  // namespace
}  // namespace tessera::train
