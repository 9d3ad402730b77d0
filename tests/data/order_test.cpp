#include "tessera/data/order.h"

#include <algorithm>
#include <numeric>

#include "data/scene.h"

namespace tessera::data {

TEST(SampleOrder, EveryEpochIsAPermutation) {
  const SampleOrder order(7, 13);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < 13; ++i) seen.push_back(order.at(epoch * 13 + i));
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> all(13);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
}

TEST(SampleOrder, EpochsAndSeedsShuffleDifferently) {
  const auto epoch = [](uint64_t seed, int64_t number) {
    const SampleOrder order(seed, 50);
    return order.batch(number * 50, 50, 0, 1);
  };
  EXPECT_NE(epoch(1, 0), epoch(1, 1));
  EXPECT_NE(epoch(1, 0), epoch(2, 0));
  EXPECT_EQ(epoch(1, 3), epoch(1, 3));
}

TEST(SampleOrder, ResumesAnywhere) {
  const SampleOrder whole(3, 7);
  for (int64_t position : {0, 6, 7, 40}) {
    const auto place = whole.place(position);
    const SampleOrder resumed(3, 7);
    EXPECT_EQ(resumed.at(resumed.position(place)), whole.at(position));
  }
  EXPECT_EQ(whole.place(40), (SampleOrder::Place{5, 5}));
}

TEST(SampleOrder, RanksTogetherTakeTheGlobalBatchOnEveryLayout) {
  const SampleOrder order(11, 10);
  const auto whole = order.batch(8, 6, 0, 1);  // crosses an epoch
  for (const int dp_size : {2, 3, 4, 6, 8}) {
    std::vector<int64_t> together;
    for (int rank = 0; rank < dp_size; ++rank)
      for (const int64_t index : order.batch(8, 6, rank, dp_size)) together.push_back(index);
    EXPECT_EQ(together, whole) << dp_size;
  }
}

TEST(SampleOrder, IsSpreadEvenly) {
  std::vector<int> first(5);
  const SampleOrder order(1, 5);
  for (int64_t epoch = 0; epoch < 5000; ++epoch) ++first[static_cast<size_t>(order.at(epoch * 5))];
  for (const int count : first) EXPECT_NEAR(count, 1000, 130);
}

TEST(SampleOrder, OfNothingIsRefused) {
  expect_error(Exit::input, {"dataset is empty"}, [] { SampleOrder(1, 0); });
}

}  // namespace tessera::data
