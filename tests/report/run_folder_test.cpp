// A run's folder is read as it grows, as it stands, and as a resumed run cuts it back.
#include "tessera/report/run_folder.h"

#include "report/run_files.h"

namespace tessera::report {
namespace {

class RunFolderTest : public RunTest {
 protected:
  void append(const std::string& text) const {
    std::ofstream(folder_ / "run/metrics.jsonl", std::ios::app | std::ios::binary) << text;
  }
};

TEST_F(RunFolderTest, AMissingFolderAndAFolderThatIsNoRunAreRefused) {
  const auto refused = [](const std::filesystem::path& path, const std::string& why) {
    try {
      RunFolder run(path);
      ADD_FAILURE() << "no error";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused(folder_ / "nowhere", "there is no such folder");
  refused(folder_, "is not a run");
}

TEST_F(RunFolderTest, FactsComeFromRecipeAndPlan) {
  const RunFolder run(new_run("run", 40));
  EXPECT_EQ(run.facts().steps, 40);
  EXPECT_EQ(run.facts().global_batch, 4);
  EXPECT_EQ(run.facts().model, "wan");
  EXPECT_EQ(run.facts().mesh, "dp_shard 2");
  EXPECT_EQ(run.last_step(), 0);
  EXPECT_FALSE(run.quiet().has_value());
}

TEST_F(RunFolderTest, ADamagedRecipeOrPlanLeavesTheRestReadable) {
  write("run/recipe.toml", "[run\nsteps");
  write("run/plan.json", "{\"mesh\":");
  MetricsWriter(folder_ / "run/metrics.jsonl", 0).step(step(1, 0.5));
  const RunFolder run(folder_ / "run");
  EXPECT_EQ(run.facts().steps, 0);
  EXPECT_EQ(run.last_step(), 1);
}

TEST_F(RunFolderTest, WhatTheTrainerWritesComesBackWhole) {
  const auto path = new_run("run", 3);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  StepMetrics first = step(1, 0.123456789012345678);
  for (RankMetrics& rank : first.ranks)
    rank.model_flops = 4.1e11 * (1 + rank.rank), rank.utilisation = {{"compute", 0.7}};
  first.count_mfu(4e12);
  metrics.step(first);
  const RunFolder run(path);
  ASSERT_EQ(run.steps().size(), 1u);
  EXPECT_EQ(run.steps()[0].loss, first.loss);
  EXPECT_EQ(run.steps()[0].mfu, first.mfu);
  EXPECT_EQ(run.steps()[0].peak_flops, 4e12);
  ASSERT_EQ(run.ranks().size(), 2u);
  EXPECT_EQ(run.ranks()[1].bytes, first.ranks[1].bytes);
  EXPECT_EQ(run.ranks()[1].busy, first.ranks[1].busy);
  EXPECT_EQ(run.ranks()[1].utilisation, first.ranks[1].utilisation);
  EXPECT_EQ(run.ranks()[1].model_flops, 8.2e11);
  EXPECT_DOUBLE_EQ(run.ranks()[1].mfu.value(), 0.82);
  for (const auto& [what, field] : kExposed)
    EXPECT_DOUBLE_EQ(run.ranks()[1].exposed.*field, first.ranks[1].exposed.*field) << what;
  EXPECT_EQ(run.ranks()[1].sent_bytes, first.ranks[1].sent_bytes);
  EXPECT_EQ(run.ranks()[1].reserved_bytes, 10 << 20);
}

TEST_F(RunFolderTest, LossesOfSetsAreMeansOverTheirSamples) {
  const auto folder = new_run("run", 4);
  {
    MetricsWriter log(folder / "metrics.jsonl", 0);
    StepMetrics one = step(1, 1.0), two = step(2, 1.0);
    one.by_set = {{"clips/\"a\"", {2.0, 3}}, {"b", {0, 0}}};
    two.by_set = {{"clips/\"a\"", {4.0, 1}}, {"b", {0.5, 3}}};
    one.preserved = {0.5, 4}, two.preserved = {0, 0};
    log.step(one), log.step(two), log.step(step(3, 1.0));
  }
  RunFolder run(folder);
  const auto sets = run.loss_by_set();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].first, "clips/\"a\"");
  EXPECT_EQ(sets[0].second.count, 4);
  EXPECT_DOUBLE_EQ(sets[0].second.loss, 2.5);
  EXPECT_EQ(sets[1].second.count, 3);
  EXPECT_DOUBLE_EQ(sets[1].second.loss, 0.5);
  EXPECT_TRUE(run.steps()[2].by_set.empty());
  EXPECT_EQ(run.preserved().count, 4);
  EXPECT_DOUBLE_EQ(run.preserved().loss, 0.5) << "a step without twins says nothing of them";
  EXPECT_FALSE(run.steps()[2].preserved);
}

TEST_F(RunFolderTest, WhatProductsIn8BitsLoseIsThatOfTheNewestStepThatCountsIt) {
  const auto folder = new_run("run", 4);
  {
    MetricsWriter log(folder / "metrics.jsonl", 0);
    StepMetrics one = step(1, 1.0), two = step(2, 1.0);
    one.fp8 = {{"blocks.0", {0.5, 0}, {0.5, 0}}};
    two.fp8 = {{"blocks.0", {0.25, 0}, {1e-9, 0.125}}, {"blocks.1", {0, 0}, {0, 0}}};
    log.step(one), log.step(two), log.step(step(3, 1.0));
  }
  const RunFolder run(folder);
  const StepMetrics* counted = run.counted_fp8();
  ASSERT_NE(counted, nullptr);
  EXPECT_EQ(counted->step, 2);
  ASSERT_EQ(counted->fp8.size(), 2u);
  EXPECT_EQ(counted->fp8[0].unit, "blocks.0");
  EXPECT_EQ(counted->fp8[0].operands.zeros, 0.25);
  EXPECT_EQ(counted->fp8[0].operands.clipped, 0);
  EXPECT_EQ(counted->fp8[0].gradients.zeros, 1e-9);
  EXPECT_EQ(counted->fp8[0].gradients.clipped, 0.125);
  EXPECT_TRUE(run.steps()[2].fp8.empty());
  {
    const auto other = new_run("other", 4);
    MetricsWriter(other / "metrics.jsonl", 0).step(step(1, 1.0));
    EXPECT_EQ(RunFolder(other).counted_fp8(), nullptr);
  }
}

TEST_F(RunFolderTest, WhatComputeWaitedForIsTheMeanOfAllStepsButTheFirstForEachCause) {
  const auto path = new_run("run", 5);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  for (int s = 1; s <= 4; ++s) {  // a line tells of the step before it
    StepMetrics m = step(s, 0.5);
    for (const auto& [what, field] : kExposed) m.ranks[1].exposed.*field = s <= 2 ? 100 : s * 0.01;
    metrics.step(m);
  }
  const RunFolder run(path);
  ASSERT_EQ(run.waits().size(), 2u);
  for (const auto& [what, field] : kExposed) EXPECT_DOUBLE_EQ(run.waits()[1].seconds.*field, 0.035) << what;
}

TEST_F(RunFolderTest, PollReadsWholeLinesAndOnlyWhatWasAdded) {
  const auto path = new_run("run", 10);
  MetricsWriter metrics(path / "metrics.jsonl", 0);
  metrics.step(step(1, 0.5));
  RunFolder run(path);
  EXPECT_FALSE(run.poll());
  metrics.step(step(2, 0.4));
  metrics.skip(3, "loss nan");
  EXPECT_TRUE(run.poll());
  EXPECT_EQ(run.steps().size(), 2u);
  EXPECT_EQ(run.last_step(), 3) << "a skipped step is behind us too";
  ASSERT_EQ(run.events().size(), 1u);
  EXPECT_EQ(run.events()[0].text, "loss nan");
  append(R"({"type":"step","step":4,"lo)");
  EXPECT_FALSE(run.poll()) << "the line is not whole yet";
  append("ss\":0.3,\"seconds\":1}\n");
  EXPECT_TRUE(run.poll());
  EXPECT_EQ(run.steps().back().loss, 0.3);
}

TEST_F(RunFolderTest, ARunThatWasCutBackByAResumeIsReadAnew) {
  const auto path = new_run("run", 10);
  {
    MetricsWriter metrics(path / "metrics.jsonl", 0);
    for (int s = 1; s <= 6; ++s) metrics.step(step(s, 1.0 / s));
  }
  RunFolder run(path);
  EXPECT_EQ(run.last_step(), 6);
  MetricsWriter resumed(path / "metrics.jsonl", 4);  // from the checkpoint of step 4
  // Longer lines, so that the file is no shorter than it was when it is looked at again.
  for (int s = 5; s <= 6; ++s) resumed.step(step(s, 0.1, /*ranks=*/4));
  EXPECT_TRUE(run.poll());
  ASSERT_EQ(run.steps().size(), 6u);
  EXPECT_EQ(run.steps()[4].loss, 0.1);
  EXPECT_EQ(run.ranks().size(), 4u);
}

TEST_F(RunFolderTest, ANaNLossIsKeptAsSuch) {
  const auto path = new_run("run", 10);
  MetricsWriter(path / "metrics.jsonl", 0).step(step(1, NAN));
  EXPECT_TRUE(std::isnan(RunFolder(path).steps().at(0).loss));
}

}  // namespace
}  // namespace tessera::report
