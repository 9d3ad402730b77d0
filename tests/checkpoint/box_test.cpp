#include "tessera/checkpoint/box.h"

#include <gtest/gtest.h>

#include <tuple>

namespace tessera::checkpoint {

using Runs = std::vector<std::tuple<int64_t, int64_t, int64_t>>;
Runs runs(const Box& a, const Box& b) {
  Runs result;
  for_each_run(a, b, [&](int64_t x, int64_t y, int64_t n) { result.emplace_back(x, y, n); });
  return result;
}

TEST(Box, EqualBoxesShareOneRun) {
  EXPECT_EQ(runs({{0, 4}, {2, 8}}, {{0, 4}, {2, 8}}), (Runs{{0, 0, 24}}));
  EXPECT_EQ(runs({}, {}), (Runs{{0, 0, 1}})) << "a scalar";
}

TEST(Box, RowsOfAWholeTensorStayContiguous) {
  EXPECT_EQ(runs({{0, 4}, {0, 8}}, {{2, 6}, {0, 8}}), (Runs{{16, 0, 16}}));
}

TEST(Box, ColumnsShareOneRunARow) {
  EXPECT_EQ(runs({{0, 2}, {0, 8}}, {{0, 2}, {4, 8}}), (Runs{{4, 0, 4}, {12, 4, 4}}));
  EXPECT_EQ(runs({{0, 2}, {0, 2}, {0, 3}}, {{0, 2}, {1, 2}, {0, 3}}), (Runs{{3, 0, 3}, {9, 3, 3}}));
}

TEST(Box, DisjointAndEmptyBoxesShareNothing) {
  EXPECT_TRUE(runs({{0, 2}}, {{2, 4}}).empty());
  EXPECT_TRUE(runs({{0, 2}, {3, 3}}, {{0, 2}, {0, 4}}).empty());
  EXPECT_FALSE(overlap({{0, 2}}, {{2, 4}}));
  EXPECT_FALSE(fits({{0, 5}}, {4}));
  EXPECT_FALSE(fits({{0, 4}}, {4, 1}));
}

}  // namespace tessera::checkpoint
