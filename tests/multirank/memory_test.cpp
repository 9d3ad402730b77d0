// The device tier never takes more than the plan says, and not much less.
#include <gtest/gtest.h>

#include "program.h"

namespace tessera::testing {
namespace {

const TinyRun& shared() {
  static const TinyRun run("memory");
  return run;
}

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
};

class Memory : public ::testing::TestWithParam<Case> {};

// Wide enough that bytes are megabytes, short enough for a test.
const std::vector<std::string> kWide = {"--run.steps",
                                        "4",
                                        "--model.config.dim",
                                        "256",
                                        "--model.config.ffn_dim",
                                        "1024",
                                        "--model.config.num_layers",
                                        "6",
                                        "--model.config.num_heads",
                                        "4"};

TEST_P(Memory, PeakIsWithinTwoPercentOfThePlanAndNeverAbove) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  const Result r = shared().train(GetParam().ranks, GetParam().name, flags);
  ASSERT_EQ(r.code, 0) << r.output;
  const auto steps = shared().metrics(GetParam().name);
  ASSERT_EQ(steps.size(), 4u);
  for (const auto& rank : steps.back()["ranks"]) {
    const double peak = rank["peak_bytes"], predicted = rank["predicted_peak_bytes"];
    EXPECT_LE(peak, predicted) << GetParam().name;
    EXPECT_GE(peak, predicted - std::max(0.02 * predicted, 1048576.0)) << GetParam().name;
  }
}

TEST_P(Memory, PersistentBytesAreTheShareOfTheRank) {
  std::vector<std::string> flags = kWide;
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  const std::string name = std::string("share-") + GetParam().name;
  ASSERT_EQ(shared().train(GetParam().ranks, name, flags).code, 0);
  int64_t parameters = 0;
  size_t tensors = 0;
  for (const auto& [tensor, values] : shared().model(name))
    parameters += static_cast<int64_t>(values.size()), ++tensors;
  const int shards = std::string(GetParam().name) == "hybrid" ? 2 : GetParam().ranks;
  const auto steps = shared().metrics(name);
  for (const auto& rank : steps.back()["ranks"]) {
    const int64_t persistent = rank["persistent_bytes"], share = parameters * 16 / shards;
    const int64_t padding = static_cast<int64_t>(tensors + 8) * 256;  // elements, at most 256 a tensor or shard
    EXPECT_GE(persistent, share - padding * 8) << "padding has no optimiser states: who holds it has less";
    EXPECT_LE(persistent, share + padding * 16);
  }
}

INSTANTIATE_TEST_SUITE_P(, Memory,
                         ::testing::Values(Case{"one", 1, {}}, Case{"two", 2, {}}, Case{"four", 4, {}},
                                           Case{"hybrid", 4, {"--mesh", "dp_replicate=2,dp_shard=2"}},
                                           Case{"recompute", 2, {"--plan.recompute", "all"}},
                                           Case{"some", 2, {"--plan.recompute", "3", "--plan.prefetch", "2"}},
                                           Case{"micro", 2, {"--train.micro_batch", "1"}},
                                           Case{"serial", 2, {"--plan.prefetch", "0", "--plan.strategy", "full_shard"}},
                                           Case{"idle", 4, {"--train.global_batch", "3"}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::testing
