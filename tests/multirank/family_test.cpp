// A family that asks for all that a Context offers, on every axis of ranks: the numbers of the plain context on one
// rank, and random plans that change no bit and take the memory they predict.
#include <gtest/gtest.h>

#include "program.h"

namespace tessera::testing {
namespace {

Result run(const char* worker, int ranks, const std::string& mesh, const std::vector<std::string>& more) {
  std::vector<std::string> words = {worker, "launch", std::to_string(ranks), mesh};
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words, {{"OMP_NUM_THREADS", "1"}}, 300);
}

struct Layout {
  int ranks;
  const char* mesh;
};

TEST(Families, GiveTheNumbersOfThePlainContextOnEveryRank) {
  for (const Layout& layout : {Layout{1, "dp_shard=1"},
                               {2, "sp=2"},
                               {2, "cp=2"},
                               {3, "cp=3"},
                               {2, "tp=2"},
                               {4, "cp=2,sp=2"},
                               {4, "cp=2,tp=2"},
                               {4, "sp=2,tp=2"}}) {
    const Result r = run(FAMILY_WORKER, layout.ranks, layout.mesh, {"7"});
    EXPECT_EQ(r.code, 0) << layout.mesh << "\n" << r.output;
  }
}

TEST(Families, TakeRandomPlansWithoutAChangeOfBits) {
  for (const Layout& layout : {Layout{1, "dp_shard=1"},
                               {2, "dp_shard=2"},
                               {2, "dp_replicate=2"},
                               {2, "sp=2"},
                               {2, "cp=2"},
                               {2, "tp=2"},
                               {2, "pp=2"}}) {
    const Result r = run(PLAN_WORKER, layout.ranks, layout.mesh, {"0", "3", "toy"});
    EXPECT_EQ(r.code, 0) << layout.mesh << "\n" << r.output;
  }
}

}  // namespace
}  // namespace tessera::testing
