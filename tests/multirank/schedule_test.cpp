// What was planned is what ran, line for line; and a schedule that breaks a rule is refused by line.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "planned_schedule.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("schedule");
  return run;
}

void expect_planned_is_executed(int ranks, const std::string& mesh, const std::vector<std::string>& more) {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();  // a run each, none resumes
  std::vector<std::string> flags = {
      "--mesh",         mesh, "--run.steps",    "3", "--checkpoint.every", "2",
      "--sample.every", "2",  "--sample.steps", "3", "--run.out",          shared().out("run-" + test + "-" + mesh)};
  flags.insert(flags.end(), more.begin(), more.end());
  testing::expect_planned_is_executed(shared(), ranks, flags);
}

TEST(Schedule, WhatIsPlannedIsExecutedOnTwoRanks) { expect_planned_is_executed(2, "dp_shard=2", {}); }
TEST(Schedule, WhatIsPlannedIsExecutedWithReplicasMicroBatchesAndRecompute) {
  expect_planned_is_executed(
      4, "dp_replicate=2,dp_shard=2",
      {"--train.global_batch", "7", "--train.micro_batch", "1", "--plan.recompute", "2", "--plan.prefetch", "2"});
}
TEST(Schedule, WhatIsPlannedIsExecutedOnOneRank) { expect_planned_is_executed(1, "dp_shard=1", {}); }

/// Replicas with other numbers of samples offload other numbers of bytes.
TEST(Schedule, WhatIsPlannedIsExecutedWithUnequalBatchesWhoseActivationsAreOffloaded) {
  for (const char* mesh : {"dp_replicate=2,sp=2", "dp_replicate=2,pp=2"})
    expect_planned_is_executed(4, mesh,
                               {"--train.global_batch", "5", "--train.micro_batch", "2", "--plan.activations",
                                "offload", "--plan.host_budget", "2GiB"});
}

TEST(Schedule, WhatIsPlannedIsExecutedWithUpdatesJustInTime) {
  expect_planned_is_executed(2, "dp_shard=2", {"--plan.states", "host", "--plan.update", "just_in_time"});
}

TEST(Schedule, WhatIsPlannedIsExecutedWithWholeMatrices) {
  for (const char* mesh : {"dp_shard=2", "tp=2"}) {
    expect_planned_is_executed(2, mesh, {"--train.optimizer", "muon"});
    const auto lines = lines_of(shared().out("planned.jsonl"));
    EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
      return line.find("\"matrices:") != std::string::npos && line.find("\"all_to_all\"") != std::string::npos;
    })) << mesh;
  }
  expect_planned_is_executed(2, "dp_shard=2,cp=1",
                             {"--train.optimizer", "muon", "--plan.update_on", "host", "--plan.states", "host",
                              "--plan.gradients", "host", "--plan.parameters", "host"});
}

TEST(Schedule, WhatIsPlannedIsExecutedWhereAnExpertHasUnitsOfItsOwn) {
  expect_planned_is_executed(
      2, "dp_shard=2",
      {"--experts.train", "both", "--plan.units",
       "low_noise.* strategy=shard_grad_op,high_noise.blocks.* strategy=full_shard activations=recompute"});
}

TEST(Schedule, EverySecondBlockIsWhatIsRecomputedAlsoOnStages) {
  for (const char* mesh : {"dp_shard=2,cp=1", "pp=2"}) {
    expect_planned_is_executed(2, mesh, {"--plan.recompute", "every 2"});
    std::set<std::string> recomputed;  // of the model's three blocks
    for (const std::string& text : lines_of(shared().out("executed.jsonl"))) {
      const auto line = nlohmann::json::parse(text);
      if (line["op"] == "recompute") recomputed.insert(line["unit"]);
    }
    EXPECT_EQ(recomputed, (std::set<std::string>{"blocks.0", "blocks.2"})) << mesh;
  }
}

class Broken : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result r = shared().tessera({"plan", shared().recipe(), "--mesh", "dp_shard=2", "--run.steps", "1",
                                       "--schedule", file_, "--plan.strategy", "full_shard", "--plan.prefetch", "0"});
    ASSERT_EQ(r.code, 0) << r.output;
    lines_ = lines_of(file_);
  }
  size_t find(const std::string& op, const std::string& unit, size_t from = 0) const {
    for (size_t i = from; i < lines_.size(); ++i) {
      const auto line = nlohmann::json::parse(lines_[i]);
      if (line["op"] == op && line.value("unit", "") == unit) return i;
    }
    ADD_FAILURE() << "no " << op << " " << unit;
    return 0;
  }
  void expect_refused(size_t line) {
    std::ofstream out(file_, std::ios::trunc);
    for (const auto& l : lines_) out << l << '\n';
    out.close();
    const Result r = shared().tessera({"plan", "--check", file_});
    EXPECT_EQ(r.code, 1) << r.output;
    EXPECT_NE(r.output.find("line " + std::to_string(line)), std::string::npos) << "expected line " << line << " in:\n"
                                                                                << r.output;
  }
  const std::string file_ = shared().out("broken.jsonl");
  std::vector<std::string> lines_;
};

TEST_F(Broken, ADeletedReleaseIsRefused) {
  const size_t at = find("release", "blocks.1");
  lines_.erase(lines_.begin() + static_cast<long>(at));
  expect_refused(at + 1);
}

TEST_F(Broken, AGatherMovedBehindItsForwardIsRefused) {
  const size_t gather = find("gather", "blocks.1"), forward = find("forward", "blocks.1", gather);
  const std::string line = lines_[gather];
  lines_.erase(lines_.begin() + static_cast<long>(gather));
  lines_.insert(lines_.begin() + static_cast<long>(forward), line);
  const Result unchanged = shared().tessera({"plan", "--check", file_});
  EXPECT_EQ(unchanged.code, 0) << unchanged.output;
  std::ofstream(file_, std::ios::trunc) << "";
  std::ofstream out(file_, std::ios::trunc);
  for (const auto& l : lines_) out << l << '\n';
  out.close();
  const Result r = shared().tessera({"plan", "--check", file_});
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("line "), std::string::npos) << r.output;
}

TEST_F(Broken, TwoSwappedCollectivesOfOneRankAreRefused) {
  const size_t a = find("gather", "blocks.0"), b = find("gather", "blocks.1", a);
  std::swap(lines_[a], lines_[b]);
  const Result r = [&] {
    std::ofstream out(file_, std::ios::trunc);
    for (const auto& l : lines_) out << l << '\n';
    out.close();
    return shared().tessera({"plan", "--check", file_});
  }();
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("line "), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
