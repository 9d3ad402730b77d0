// What of the exchanges inside a unit stands in the open: by hand, and against a lane that is moved in small steps.
#include "tessera/plan/simulate/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera::plan {
namespace {

using Seconds = std::vector<double>;

void expect_near(const Seconds& found, const Seconds& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
}

TEST(Exchanges, OneThatIsAwaitedAtOnceIsInTheOpenAndAnotherBehindComputeIsNot) {
  expect_near(exposed({{0, 0, 2}}), {2});
  expect_near(exposed({{1, 4, 2}}), {0});
  expect_near(exposed({{1, 2, 2}}), {1});
}

TEST(Exchanges, OnesThatOverlapRunOneAfterAnother) {
  // three gradients begun together, each awaited one product after the other
  expect_near(exposed({{5, 5, 2}, {5, 6, 2}, {5, 7, 2}}), {2, 1, 1});
  expect_near(exposed({{5, 5, 2}, {5, 9, 2}, {5, 13, 2}}), {2, 0, 0});
  // q and k are begun before v, and all are awaited where v is ready
  expect_near(exposed({{1, 3, 0.5}, {2, 3, 0.5}, {3, 3, 0.5}}), {0, 0, 0.5});
  expect_near(exposed({{1, 3, 2}, {2, 3, 2}, {3, 3, 2}}), {0, 2, 2});
}

TEST(Exchanges, AWaitHidesWhatIsBegunAlready) {
  expect_near(exposed({{0, 1, 3}, {0, 1, 1}}), {2, 1});
  expect_near(exposed({{0, 1, 3}, {1, 8, 1}}), {2, 0});
}

TEST(Exchanges, OfAnyNumberNoneWaitsLongerThanAllOfThemTakeNorShorterThanTheLaneNeeds) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> some(0, 3);
  for (int round = 0; round < 1000; ++round) {
    std::vector<Exchange> exchanges;
    double at = 0, awaited = 0, all = 0;
    for (int i = 0; i < 6; ++i) {
      at += some(random), awaited = std::max(awaited, at + some(random));
      exchanges.push_back({at, awaited, some(random)});
      all += exchanges.back().seconds;
    }
    const Seconds open = exposed(exchanges);
    EXPECT_LE(std::accumulate(open.begin(), open.end(), 0.0), all + 1e-9);
    double waited = 0, lane = 0;  // each ends when the lane has done it, and is not read before
    for (size_t i = 0; i < exchanges.size(); ++i) {
      double before = 0;  // waits that come before it is begun
      for (size_t j = 0; j < i; ++j) before += exchanges[j].awaited <= exchanges[i].begun ? open[j] : 0;
      lane = std::max(lane, exchanges[i].begun + before) + exchanges[i].seconds;
      EXPECT_GE(exchanges[i].awaited + waited + open[i], lane - 1e-9);
      waited += open[i];
    }
  }
}

}  // namespace
}  // namespace tessera::plan
