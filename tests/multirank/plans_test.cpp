// Random plans, executed: what a plan chooses changes memory and traffic and not a bit of the result.
#include <gtest/gtest.h>

#include "matrix.h"
#include "seed_jobs.h"

namespace tessera::testing {
namespace {

constexpr const char* kLayouts[] = {"dp_shard=1",
                                    "dp_shard=2",
                                    "dp_replicate=2",
                                    "dp_shard=3",
                                    "dp_replicate=2,dp_shard=2",
                                    "dp_shard=4",
                                    "sp=2",
                                    "cp=2",
                                    "cp=3",
                                    "cp=2,sp=2",
                                    "dp_shard=2,cp=2",
                                    "tp=2",
                                    "dp_shard=2,tp=2",
                                    "pp=2",
                                    "pp=3",
                                    "pp=2,dp_shard=2",
                                    "dp_replicate=4",
                                    "dp_replicate=2,tp=2",
                                    "pp=2,cp=2",
                                    "pp=2,sp=2"};

TEST(RandomPlans, GiveTheBitsOfThePlainLoopInTheMemoryTheyPredict) {
  std::vector<Job> jobs;
  for (const char* mesh : kLayouts) jobs.push_back({mesh, 0, 4});
  expect_jobs_pass(PLAN_WORKER, jobs);
}

TEST(RandomPlans, ThatKeepActivationsInFewerBitsStayCloseInTheMemoryTheyPredict) {
  expect_jobs_pass(PLAN_WORKER, {{"dp_shard=1", 1000000, 1000008},
                                 {"dp_shard=2", 1000008, 1000016},
                                 {"sp=2", 1000016, 1000024},
                                 {"cp=2", 1000024, 1000032}});
}

/// Compiled alone, so many more of them.
TEST(RandomPlans, OfNoLayoutLetTwoInstructionsShareMemoryInNoOrder) {
  std::vector<Job> jobs;
  for (const char* mesh : kLayouts) {
    jobs.push_back({mesh, 0, 10});
    jobs.push_back({mesh, 1000000, 1000005});
  }
  expect_jobs_pass(PLAN_WORKER, jobs, {}, "order");
}

// On stages messages come and go beside what is in fewer bits.
TEST(RandomPlans, ThatKeepActivationsInFewerBitsOnStagesTakeWhatTheyPredict) {
  std::vector<Job> jobs = {{"pp=2", 1000032, 1000038}, {"pp=3", 1000040, 1000042}};
  MatrixPart part("random lossy plans on stages", 40);
  for (int i : part) jobs.push_back({kLayouts[13 + i % 3], 1000400 + 2 * i, 1000402 + 2 * i});
  expect_jobs_pass(PLAN_WORKER, jobs);
}

/// Seeds that end with 4 or 9; with them all three times of an update.
TEST(RandomPlans, ThatKeepGradientsInBf16GiveTheBitsOfAPlainLoopThatRoundsItsOwn) {
  std::vector<Job> jobs;
  for (const char* mesh : {"dp_shard=1", "dp_shard=2", "dp_replicate=2,dp_shard=2"})
    for (const int seed : {4, 9, 14}) jobs.push_back({mesh, seed, seed + 1});
  expect_jobs_pass(PLAN_WORKER, jobs);
}

/// Models of other widths and depths, picture-to-video among them, trained in full and by LoRA.
TEST(RandomPlans, OfRandomShapesTakeTheMemoryTheyPredict) {
  std::vector<Job> jobs;
  int first = 0;
  for (const char* mesh : {"dp_shard=1", "dp_shard=2", "pp=2", "dp_shard=3", "pp=3", "tp=2"})
    for (const char* family : {"wan:shapes", "wan:lora"}) jobs.push_back({mesh, first, first + 3, family}), first += 3;
  MatrixPart part("random plans of random shapes", 80);
  for (int i : part)
    jobs.push_back({kLayouts[static_cast<size_t>(i) % std::size(kLayouts)], 1000 + 5 * i, 1005 + 5 * i,
                    i / std::size(kLayouts) % 2 ? "wan:lora" : "wan:shapes"});
  expect_jobs_pass(PLAN_WORKER, jobs);
}

/// Seven units on stages, 45 tokens a sample: in full, and a picture-to-video model by LoRA.
TEST(RandomPlans, OfSevenUnitsOnStagesTakeTheMemoryTheyPredict) {
  expect_jobs_pass(PLAN_WORKER, {{"pp=2", 0, 8, "wan:seven"}, {"pp=3", 0, 8, "wan:seven-lora"}});
}

TEST(RandomPlans, GiveTheSameOverManyMore) {
  std::vector<Job> jobs;
  MatrixPart part("random plans executed", 120);
  for (int i : part) jobs.push_back({kLayouts[static_cast<size_t>(i) % std::size(kLayouts)], 100 + 5 * i, 105 + 5 * i});
  expect_jobs_pass(PLAN_WORKER, jobs);
}

}  // namespace
}  // namespace tessera::testing
