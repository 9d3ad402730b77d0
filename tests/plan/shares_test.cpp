#include "tessera/plan/shares.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

using Shares = std::vector<int64_t>;

TEST(Shares, AreEvenWhereRanksAreEquallyFast) {
  EXPECT_EQ(shares_by_cost(8, {1, 1, 1, 1}), (Shares{2, 2, 2, 2}));
  EXPECT_EQ(shares_by_cost(10, {1, 1, 1, 1}), (Shares{3, 3, 2, 2}));
}

TEST(Shares, OfABatchOfAnotherSizeThanThePlansAreAllOfItOnceAndInOrder) {
  Plan plan;
  plan.mesh = Mesh::parse("dp_shard=3");
  plan.global_batch = 18, plan.micro_batch = 2;  // three micro-batches
  for (int64_t batch = 1; batch <= 40; ++batch) {
    int64_t next = 0;
    for (int rank = 0; rank < 3; ++rank)
      for (int64_t micro = 0; micro < plan.accumulation(); ++micro) {
        const Plan::Slice slice = slice_of(plan, batch, rank, micro);
        EXPECT_EQ(slice.first, next) << batch << " samples, rank " << rank << ", micro-batch " << micro;
        next += slice.count;
      }
    EXPECT_EQ(next, batch);
  }
}

TEST(Shares, GiveASlowRankLess) {
  EXPECT_EQ(shares_by_cost(14, {1, 1, 2, 1}), (Shares{4, 4, 2, 4}));
  EXPECT_EQ(shares_by_cost(4, {1, 3}), (Shares{3, 1}));
  EXPECT_EQ(shares_by_cost(4, {1, 100}), (Shares{3, 1})) << "it keeps one, to be measured by";
  EXPECT_EQ(shares_by_cost(2, {5, 1, 1}), (Shares{0, 1, 1})) << "fewer samples than ranks";
}

/// The best by trying all.
double best(int64_t left, const std::vector<double>& seconds, size_t rank, double slowest_yet) {
  if (rank + 1 == seconds.size()) return std::max(slowest_yet, static_cast<double>(left) * seconds[rank]);
  double least = 1e9;
  for (int64_t n = 1; n <= left - static_cast<int64_t>(seconds.size() - rank - 1); ++n)
    least = std::min(least, best(left - n, seconds, rank + 1, std::max(slowest_yet, n * seconds[rank])));
  return least;
}

TEST(Shares, EndTheLastRankAsEarlyAsAnyShareCould) {
  for (const std::vector<double>& seconds :
       {std::vector<double>{1, 1.4, 2.2}, {3, 1, 1}, {0.7, 0.9, 1.1}, {1, 1, 1}, {5, 4, 3}})
    for (int64_t batch = 3; batch < 14; ++batch) {
      const Shares shares = shares_by_cost(batch, seconds);
      EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t{0}), batch);
      EXPECT_NEAR(slowest(shares, seconds), best(batch, seconds, 0, 0), 1e-12) << batch;
    }
}

TEST(Shares, OfAPlanCoverTheBatchInOrder) {
  Plan plan;
  plan.mesh[Axis::dp_shard] = 3;
  plan.global_batch = 9, plan.micro_batch = 2, plan.shares = {5, 1, 3};
  EXPECT_EQ(plan.accumulation(), 3) << "of the fullest rank, and of all";
  int64_t next = 0;
  for (int dp = 0; dp < 3; ++dp) {
    int64_t own = 0;
    for (int64_t m = 0; m < plan.accumulation(); ++m) {
      const Plan::Slice slice = plan.slice(dp, m);
      EXPECT_EQ(slice.first, next);
      next += slice.count, own += slice.count;
    }
    EXPECT_EQ(own, plan.shares[static_cast<size_t>(dp)]);
  }
  EXPECT_EQ(next, 9);
}

}  // namespace
}  // namespace tessera::plan
