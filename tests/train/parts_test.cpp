// Which part of a run runs.
#include "tessera/train/parts.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

/// Stages from step 1, 11 and 21 on, whose rates are 0.1, 0.2 and 0.3.
Parts three() {
  std::vector<planning::PartPlan> plans(3);
  for (int p = 0; p < 3; ++p) {
    recipe::RunPart& part = plans[static_cast<size_t>(p)].part;
    part.number = p, part.first = 10 * p + 1, part.last = 10 * p + 10;
    part.recipe.train.lr = 0.1 * (p + 1);
  }
  return {std::move(plans), std::vector<planning::PricedStep>(3), {{1, 2}, {3, 4}, {5, 6}}, 0};
}

TEST(Parts, ARunGoesOnInThePartOfItsNextStep) {
  const std::vector<std::pair<int64_t, size_t>> part_behind = {{0, 0}, {9, 0}, {10, 1}, {19, 1}, {20, 2}, {30, 2}};
  for (const auto& [done, part] : part_behind) {
    Parts parts = three();
    parts.go_on(done);
    EXPECT_EQ(parts.index(), part) << done;
    EXPECT_EQ(parts.done(), done);
    EXPECT_EQ(parts.more(), part < 2) << done;
    EXPECT_DOUBLE_EQ(parts.recipe().train.lr, 0.1 * static_cast<double>(part + 1));
    EXPECT_EQ(parts.sample_flops(1), 2 * static_cast<double>(part) + 2);
  }
}

}  // namespace
}  // namespace tessera::train
