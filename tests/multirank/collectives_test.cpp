// Collectives between real processes, by sockets and by reading the other's memory.
#include <gtest/gtest.h>

#include "program.h"

namespace tessera::testing {
namespace {

using Environment = std::map<std::string, std::string>;

Result on_ranks(int ranks, std::vector<std::string> words, Environment environment = {}) {
  std::vector<std::string> argv = {COMM_WORKER, "launch", std::to_string(ranks), "1", "0", "-", "60"};
  argv.insert(argv.end(), words.begin(), words.end());
  environment["OMP_NUM_THREADS"] = "1";
  return run_program(argv, environment, 60);
}

class Collectives : public ::testing::TestWithParam<const char*> {
 protected:
  Environment environment() const { return {{"TESSERA_SAME_HOST", GetParam()}}; }
};

TEST_P(Collectives, GiveWhatTheyShouldOnTwoRanksInTheSameBits) {
  const Result r = on_ranks(2, {"collectives"}, environment());
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST_P(Collectives, GiveWhatTheyShouldOnFourRanksInTheSameBits) {
  const Result r = on_ranks(4, {"collectives"}, environment());
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST_P(Collectives, RunOverEachAxisOfAMesh) {
  for (const char* mesh : {"dp_replicate=2,dp_shard=2", "dp_replicate=4", "dp_replicate=3"}) {
    const int ranks = std::string(mesh) == "dp_replicate=3" ? 3 : 4;
    const Result r = on_ranks(ranks, {"collectives", mesh}, environment());
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_P(Collectives, OfTwoGroupsRunAtOnceFromTwoThreads) {
  const Result r = on_ranks(2, {"lanes"}, environment());
  EXPECT_EQ(r.code, 0) << r.output;
}

INSTANTIATE_TEST_SUITE_P(BySocketAndByMemory, Collectives, ::testing::Values("0", "100000"));

TEST(Faults, ACollectiveThatDoesNotFinishIsNamedWithItsGroupAndBytes) {
  const Result r = on_ranks(2, {"absent"});
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("all_gather of 400000 bytes on gather:dp_shard did not finish"), std::string::npos)
      << r.output;
  EXPECT_LT(r.seconds, 15) << "the wait is bounded";
}

TEST(Faults, ARankWithAnotherRecipeIsNamedByAllRanks) {
  const Result r = on_ranks(2, {"disagree"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("rank 1 has another recipe than rank 0"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
