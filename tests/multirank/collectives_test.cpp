// Collectives between real processes.
#include <gtest/gtest.h>

#include "program.h"

namespace tessera::testing {
namespace {

Result on_ranks(int ranks, std::vector<std::string> words) {
  std::vector<std::string> argv = {COMM_WORKER, "launch", std::to_string(ranks), "1", "0", "-", "60"};
  argv.insert(argv.end(), words.begin(), words.end());
  return run_program(argv, {{"OMP_NUM_THREADS", "1"}}, 60);
}

TEST(Collectives, GiveWhatTheyShouldOnTwoRanksInTheSameBits) {
  const Result r = on_ranks(2, {"collectives"});
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(Collectives, GiveWhatTheyShouldOnFourRanksInTheSameBits) {
  const Result r = on_ranks(4, {"collectives"});
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(Collectives, RunOverEachAxisOfAMesh) {
  for (const char* mesh : {"dp_replicate=2,dp_shard=2", "dp_replicate=4", "dp_replicate=3"}) {
    const int ranks = std::string(mesh) == "dp_replicate=3" ? 3 : 4;
    const Result r = on_ranks(ranks, {"collectives", mesh});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST(Collectives, OfTwoGroupsRunAtOnceFromTwoThreads) {
  const Result r = on_ranks(2, {"lanes"});
  EXPECT_EQ(r.code, 0) << r.output;
}

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
