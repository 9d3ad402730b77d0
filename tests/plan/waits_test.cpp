#include "tessera/plan/waits.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tessera::plan {
namespace {

std::vector<int> listed(const Waits& waits) { return {waits.begin(), waits.end()}; }

Waits up_to(int count) {
  Waits waits;
  for (int i = 0; i < count; ++i) waits.push_back(i);
  return waits;
}

TEST(Waits, HoldTheSameWhereverTheyLie) {
  for (const int count : {0, 1, 6, 7, 40}) {
    std::vector<int> expected(static_cast<size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    Waits waits = up_to(count);
    EXPECT_EQ(listed(waits), expected);
    Waits copy = waits, moved = std::move(waits);
    EXPECT_EQ(copy, moved);
    EXPECT_TRUE(waits.empty());  // NOLINT: a moved list is empty
    waits = {1, 2};
    EXPECT_EQ(listed(waits), (std::vector<int>{1, 2}));
    copy = waits;
    EXPECT_EQ(copy, waits);
    waits = std::move(moved);
    EXPECT_EQ(listed(waits), expected);
  }
}

TEST(Waits, TakeAndLoseInTheMiddle) {
  Waits waits = up_to(6);
  waits.insert(waits.begin() + 2, 10);
  EXPECT_EQ(listed(waits), (std::vector<int>{0, 1, 10, 2, 3, 4, 5}));
  waits.erase(waits.begin());
  waits.erase_if([](int wait) { return wait < 4; });
  EXPECT_EQ(listed(waits), (std::vector<int>{10, 4, 5}));
  waits.append(up_to(2));
  EXPECT_EQ(listed(waits), (std::vector<int>{10, 4, 5, 0, 1}));
}

}  // namespace
}  // namespace tessera::plan
