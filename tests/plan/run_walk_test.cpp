#include "tessera/plan/compile/run_walk.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera::plan {
namespace {

constexpr char kLetters[] = {'t', 'u', 'w', 'e', 's', 'c'};  // of Visit::Kind

/// "t1 u1 c1 ...": each visit by its kind's letter and its step; a training step that finds updates pending has a star.
std::string walked(RunWalk walk, int64_t stop_at = 0) {
  std::string text;
  while (const std::optional<Visit> visit = walk.next()) {
    text += (text.empty() ? "" : " ") + std::string(1, kLetters[static_cast<int>(visit->kind)]) +
            std::to_string(visit->step) + (visit->pending ? "*" : "");
    if (visit->kind == Visit::Kind::train && visit->step == stop_at) walk.stop();
  }
  return text;
}

TEST(RunWalk, StepsThenACheckpointBehindTheLast) { EXPECT_EQ(walked(RunWalk({.steps = 3}, false)), "t1 t2 t3 c3"); }

TEST(RunWalk, ACheckpointComesBeforeTheSamplesOfItsStep) {
  EXPECT_EQ(walked(RunWalk(
                {.steps = 4, .checkpoint_every = 2, .sample_every = 2, .sample_prompts = 1, .sample_steps = 2}, false)),
            "t1 t2 c2 s2 s2 t3 t4 c4 s4 s4");
}

TEST(RunWalk, HeldOutLossIsMeasuredBeforeTheSaveItMayKeepAndBehindPendingUpdates) {
  const RunShape shape{.steps = 5, .checkpoint_every = 2, .eval_every = 2, .eval_passes = 3};
  RunWalk walk(shape, false);
  walk.make_up_evaluation();
  EXPECT_EQ(walked(std::move(walk)), "e0 t1 t2 e2 c2 t3 t4 e4 c4 t5 e5 c5");
  EXPECT_EQ(walked(RunWalk({.steps = 3, .eval_every = 2, .eval_passes = 1}, true)), "t1 t2* u2 e2 t3 u3 e3 c3");
  EXPECT_EQ(walked(RunWalk({.steps = 2, .eval_every = 1, .eval_passes = 0}, false)), "t1 t2 c2")
      << "nothing is held out";
  RunWalk both({.steps = 3,
                .first_step = 3,
                .sample_every = 2,
                .sample_prompts = 1,
                .sample_steps = 1,
                .eval_every = 3,
                .eval_passes = 1},
               false);
  both.make_up_samples(), both.make_up_evaluation();
  EXPECT_EQ(walked(std::move(both)), "e2 s2 t3 e3 c3 s3");
}

TEST(RunWalk, SamplesThatWereNotMadeAreMadeUpAheadOfTheNextStep) {
  RunWalk walk({.steps = 3, .first_step = 3, .sample_every = 2, .sample_prompts = 1, .sample_steps = 2}, false);
  walk.make_up_samples();
  EXPECT_EQ(walked(std::move(walk)), "s2 s2 t3 c3 s3 s3");
}

TEST(RunWalk, JustInTimeUpdatesArePendingUntilSomethingNeedsThem) {
  EXPECT_EQ(walked(RunWalk({.steps = 4, .checkpoint_every = 3}, true)), "t1 t2* t3* u3 c3 t4 u4 c4");
}

TEST(RunWalk, AnExpertIsSwappedInBehindItsPendingUpdates) {
  const auto pairs = [](int64_t step) { return static_cast<int>(step / 2 % 2); };  // after each odd step
  EXPECT_EQ(walked(RunWalk({.steps = 4, .expert_of = pairs}, true)), "t1 u1 w1 t2 t3* u3 w3 t4 u4 c4");
  EXPECT_EQ(walked(RunWalk({.steps = 4, .expert_of = pairs}, false)), "t1 w1 t2 t3 w3 t4 c4");
}

TEST(RunWalk, WhereASampleNeedsBothExpertsNoneIsSwappedInAhead) {
  EXPECT_EQ(walked(RunWalk({.steps = 2,
                            .sample_every = 1,
                            .sample_prompts = 1,
                            .sample_steps = 1,
                            .expert_of = [](int64_t step) { return static_cast<int>(step % 2); }},
                           false)),
            "t1 s1 t2 c2 s2");
}

TEST(RunWalk, ASaveThatIsAskedForComesOnceBehindPendingUpdates) {
  const auto walked_with_saves = [](RunWalk walk, const std::set<int64_t>& at) {
    std::string text;
    while (const std::optional<Visit> visit = walk.next()) {
      if (visit->kind == Visit::Kind::train && at.contains(visit->step)) walk.save(), walk.save();
      text += (text.empty() ? "" : " ") + std::string(1, kLetters[static_cast<int>(visit->kind)]) +
              std::to_string(visit->step);
    }
    return text;
  };
  EXPECT_EQ(walked_with_saves(RunWalk({.steps = 4}, false), {2}), "t1 t2 c2 t3 t4 c4");
  EXPECT_EQ(walked_with_saves(RunWalk({.steps = 4}, true), {1, 3}), "t1 u1 c1 t2 t3 u3 c3 t4 u4 c4");
  EXPECT_EQ(walked_with_saves(RunWalk({.steps = 4, .checkpoint_every = 2}, false), {2, 4}), "t1 t2 c2 t3 t4 c4");
}

TEST(RunWalk, AStopLeavesPendingUpdatesAndAWholeCheckpointBehind) {
  EXPECT_EQ(walked(RunWalk({.steps = 9, .sample_every = 2, .sample_prompts = 1, .sample_steps = 1}, true), 2),
            "t1 t2* u2 c2");
  EXPECT_EQ(walked(RunWalk({.steps = 9}, false), 5), "t1 t2 t3 t4 t5 c5");
  EXPECT_EQ(walked(RunWalk({.steps = 3}, false), 3), "t1 t2 t3 c3");
}

TEST(RunWalk, APartOfARunEndsAtItsLastStepWithNothingPending) {
  EXPECT_EQ(walked(RunWalk({.steps = 9, .first_step = 3, .last_step = 4}, true)), "t3 t4* u4");
}

}  // namespace
}  // namespace tessera::plan
