// What is told and written around a step.
#include "tessera/train/observers.h"

#include "run_test.h"

namespace tessera::train {
namespace {

class Observed : public RunTest {
 protected:
  static StepEnd end(int64_t step, const std::vector<StepReport>& ranks, const std::string& skipped = "") {
    StepEnd end{{plan::Visit::Kind::train, step, false}, {}, ranks, skipped};
    end.metrics.step = step, end.metrics.loss = 0.5;
    return end;
  }
  static std::vector<StepReport> seconds(const std::vector<double>& of_ranks) {
    std::vector<StepReport> reports(of_ranks.size());
    for (size_t r = 0; r < of_ranks.size(); ++r) reports[r].work = of_ranks[r];
    return reports;
  }
  Parts parts_{std::vector<planning::PartPlan>(1), {}, {}, 0};
};

TEST_F(Observed, TheHistoryHasALineForEachStepAndSaysWhyOneWasSkipped) {
  report::Progress progress(false, 100, 0);
  const Observer observer = history(start(), parts_, progress);
  const std::vector<StepReport> ranks(1);
  StepEnd one = end(1, ranks), two = end(2, ranks, "loss nan, sample a.mp4");
  observer.before(one.visit), observer.after(one);
  observer.before(two.visit), observer.after(two);
  run_->log()->flush();
  EXPECT_TRUE(told("\"type\":\"step\"")) << lines();
  EXPECT_TRUE(told("\"type\":\"skip\"")) << lines();
  EXPECT_TRUE(told("loss nan, sample a.mp4")) << lines();
}

TEST_F(Observed, MemoryIsAskedForInTheFirstTwoStepsOfAPartAndIsToldOfLaterOnes) {
  int64_t requests = 0;
  const Observer observer = memory_requests(parts_, [&] { return requests; });
  const std::vector<StepReport> ranks(1);
  for (int64_t step = 1; step <= 4; ++step) {
    testing::internal::CaptureStderr();
    StepEnd finished = end(step, ranks);
    observer.before(finished.visit);
    if (step != 3) requests += 5;
    observer.after(finished);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("step 4 allocated memory from the GPU's driver 5 times") != std::string::npos, step == 4) << log;
    EXPECT_EQ(log.empty(), step != 4) << log;
  }
}

TEST_F(Observed, ASlowRankIsNamedInLogAndHistoryAndLosesSamplesWhereItMay) {
  recipe::Recipe::Fault settings;
  settings.slow_factor = 1.3, settings.slow_steps = 4;
  plan::Plan plan;
  plan.mesh = Mesh::parse("dp_shard=2"), plan.global_batch = 8;
  const plan::Plan* shared = nullptr;
  std::vector<std::pair<int64_t, std::vector<int64_t>>> given;
  start();
  const Observer observer = slow_ranks(
      *run_, plan.mesh, settings, [&] { return shared; },
      [&](int64_t step, const auto& shares) { given.emplace_back(step, shares); });
  const std::vector<StepReport> reports = seconds({0.1, 0.3});
  for (int64_t step = 1; step <= 6; ++step) {
    StepEnd finished = end(step, reports);
    observer.after(finished);
  }
  run_->log()->flush();
  EXPECT_TRUE(told("rank 1 is slow")) << lines();
  EXPECT_TRUE(given.empty()) << "the recipe does not say so";
  shared = &plan;
  StepEnd finished = end(7, reports);
  observer.after(finished);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].first, 7);
  EXPECT_EQ(given[0].second, (std::vector<int64_t>{6, 2}));
}

}  // namespace
}  // namespace tessera::train
