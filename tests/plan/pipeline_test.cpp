// Pipeline schedules: the order of each, by the clock, against the formulas of the literature.
#include "tessera/plan/policy.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tessera/base/check.h"

namespace tessera::plan {
namespace {

using Kind = PipelineAct::Kind;

/// Seconds of one micro-batch in one stage.
struct Costs {
  double forward = 1, backward = 2, weight_grad = 0;
};

struct Clock {
  double seconds = 0;       ///< until the last rank ends; -1 when they wait for each other
  std::vector<int> stored;  ///< most micro-batch chunks whose activations a rank holds at once
};

/// Runs all ranks by the clock; messages take no time.
Clock run(PipelineSchedule schedule, int ranks, int chunks, int micros, const Costs& cost) {
  std::vector<std::vector<PipelineAct>> acts;
  for (int r = 0; r < ranks; ++r) acts.push_back(pipeline_acts(schedule, ranks, r, chunks, micros));
  std::map<std::tuple<Kind, int, int>, double> done;  // by kind, stage, micro-batch
  std::vector<size_t> next(ranks, 0);
  std::vector<double> now(ranks, 0);
  const int last = ranks * chunks - 1;
  const auto ready = [&](int stage, const PipelineAct& act) -> double {
    const auto at = [&](Kind kind, int s) {
      const auto found = done.find({kind, s, act.micro});
      return found == done.end() ? -1.0 : found->second;
    };
    if (act.kind == Kind::forward) return stage == 0 ? 0 : at(Kind::forward, stage - 1);
    if (act.kind == Kind::weight_grad) return at(Kind::backward, stage);
    const double own = at(Kind::forward, stage), gradient = stage == last ? own : at(Kind::backward, stage + 1);
    return own < 0 || gradient < 0 ? -1 : std::max(own, gradient);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < ranks; ++r)
      for (; next[r] < acts[r].size(); ++next[r], moved = true) {
        const PipelineAct& act = acts[r][next[r]];
        const int stage = act.chunk * ranks + r;
        const double from = ready(stage, act);
        if (from < 0) break;
        const double seconds = act.kind == Kind::forward    ? cost.forward
                               : act.kind == Kind::backward ? cost.backward
                                                            : cost.weight_grad;
        now[r] = std::max(now[r], from) + seconds;
        EXPECT_TRUE(done.emplace(std::tuple(act.kind, stage, act.micro), now[r]).second) << "runs twice";
      }
  }
  Clock clock;
  for (int r = 0; r < ranks; ++r) {
    if (next[r] < acts[r].size()) return {-1, {}};
    clock.seconds = std::max(clock.seconds, now[r]);
    const Kind frees = schedule == PipelineSchedule::zero_bubble ? Kind::weight_grad : Kind::backward;
    int held = 0, most = 0;
    for (const PipelineAct& act : acts[r]) {
      held += act.kind == Kind::forward ? 1 : act.kind == frees ? -1 : 0;
      most = std::max(most, held);
    }
    EXPECT_EQ(held, 0);
    clock.stored.push_back(most);
  }
  return clock;
}

TEST(Pipeline, GpipeAndOneForwardOneBackwardWaitForAllOtherStagesOnce) {
  for (int p : {2, 3, 4, 8})
    for (int m : {1, 2, 4, 7, 16}) {
      const double expected = m * 3 + (p - 1) * 3;
      EXPECT_DOUBLE_EQ(run(PipelineSchedule::gpipe, p, 1, m, {}).seconds, expected) << p << " ranks, " << m;
      EXPECT_DOUBLE_EQ(run(PipelineSchedule::one_f_one_b, p, 1, m, {}).seconds, expected) << p << " ranks, " << m;
    }
}

TEST(Pipeline, OneForwardOneBackwardStoresAsManyMicroBatchesAsStagesFollow) {
  const Clock clock = run(PipelineSchedule::one_f_one_b, 4, 1, 16, {});
  EXPECT_EQ(clock.stored, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(run(PipelineSchedule::gpipe, 4, 1, 16, {}).stored, (std::vector<int>{16, 16, 16, 16}));
}

TEST(Pipeline, InterleavingDividesTheBubbleByTheChunks) {
  for (int p : {2, 4, 8})
    for (int v : {1, 2, 3})
      for (int groups : {1, 2, 5}) {
        const int m = p * groups;
        const Clock clock = run(PipelineSchedule::interleaved, p, v, m, {1.0 / v, 2.0 / v, 0});
        EXPECT_NEAR(clock.seconds, m * 3 + (p - 1) * 3.0 / v, 1e-9) << p << " ranks, " << v << " chunks, " << m;
        if (groups > 1 && v > 1)
          EXPECT_LE(clock.stored[0], p * v + p - 1) << "p (1 + (p - 1) / (p v)) micro-batches in chunks";
      }
}

TEST(Pipeline, ZeroBubbleFillsTheWaitsWithWeightGradientsInTheMemoryOf1F1B) {
  for (int p : {2, 4, 8})
    for (int m : {p, 2 * p, 4 * p}) {
      const Clock clock = run(PipelineSchedule::zero_bubble, p, 1, m, {1, 1, 1});
      EXPECT_DOUBLE_EQ(clock.seconds, m * 3 + (p - 1) * 1) << p << " ranks, " << m << ": (p - 1) (F + B - W)";
      for (int stored : clock.stored) EXPECT_LE(stored, p);
      EXPECT_LT(clock.seconds, run(PipelineSchedule::one_f_one_b, p, 1, m, {1, 2, 0}).seconds);
    }
}

TEST(Pipeline, EveryScheduleComesToItsEndWithAnyNumberOfMicroBatches) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 14; ++m) {
      for (auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble})
        EXPECT_GT(run(schedule, p, 1, m, {1, 1, 1}).seconds, 0) << name(schedule) << " " << p << " " << m;
      for (int v = 1; v <= 4; ++v)
        EXPECT_GT(run(PipelineSchedule::interleaved, p, v, m, {}).seconds, 0) << p << " " << v << " " << m;
    }
}

TEST(Pipeline, AUnitSeesItsMicroBatchesInAscendingOrder) {
  for (auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved,
                        PipelineSchedule::zero_bubble})
    for (int rank = 0; rank < 3; ++rank) {
      std::map<std::pair<Kind, int>, int> seen;
      for (const PipelineAct& act :
           pipeline_acts(schedule, 3, rank, schedule == PipelineSchedule::interleaved ? 2 : 1, 8))
        EXPECT_EQ(act.micro, (seen[{act.kind, act.chunk}]++)) << name(schedule) << ", rank " << rank;
      for (const auto& [key, count] : seen) EXPECT_EQ(count, 8);
    }
}

TEST(Pipeline, OneRankRunsTheListItAlwaysRan) {
  const auto acts = pipeline_acts(PipelineSchedule::one_f_one_b, 1, 0, 1, 2);
  EXPECT_EQ(acts, (std::vector<PipelineAct>{
                      {Kind::forward, 0, 0}, {Kind::backward, 0, 0}, {Kind::forward, 0, 1}, {Kind::backward, 0, 1}}));
}

TEST(Pipeline, StagesAreBalancedByCost) {
  EXPECT_EQ(balanced_stages({1, 1, 1, 1}, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(balanced_stages({5, 1, 1, 1, 1, 1}, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(balanced_stages({0.1, 4, 4, 4, 4, 0.2}, 4), (std::vector<int>{0, 2, 3, 4})) << "stem and head ride along";
  EXPECT_EQ(balanced_stages({1, 1, 1, 1, 1, 1, 1}, 3).size(), 3u);
  EXPECT_EQ(balanced_stages({3, 1}, 1), (std::vector<int>{0}));
  EXPECT_EQ(balanced_stages({0, 0, 9}, 3), (std::vector<int>{0, 1, 2})) << "every stage has a unit";
}

TEST(Pipeline, MoreStagesThanUnitsAreRefusedWithTheMostThatGo) {
  try {
    balanced_stages({1, 1, 1}, 4);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("at most 3"), std::string::npos) << error.what();
  }
}

TEST(Pipeline, AnUnknownScheduleNamesTheNearest) {
  EXPECT_EQ(pipeline_schedule_of("1f1b", "plan.pipeline"), PipelineSchedule::one_f_one_b);
  try {
    pipeline_schedule_of("zerobubble", "plan.pipeline");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("zero_bubble"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::plan
