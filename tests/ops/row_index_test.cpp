#include "tessera/ops/row_index.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::testing {

using Runs = std::vector<ops::RowRun>;

TEST(RowIndex, RunsAreWhereTheRowChanges) {
  const ops::RowIndex rows(at::tensor({0, 0, 0, 2, 2, 1}, at::kInt));
  EXPECT_EQ(rows.runs, (Runs{{0, 0, 3}, {2, 3, 5}, {1, 5, 6}}));
  EXPECT_TRUE(ops::RowIndex(at::empty({0}, at::kInt)).runs.empty());
}

TEST(RowIndex, ASliceCountsFromItsFirstToken) {
  const ops::RowIndex rows(at::tensor({0, 0, 0, 2, 2, 1}, at::kInt));
  const ops::RowIndex part = rows.slice(2, 5);
  EXPECT_EQ(part.runs, (Runs{{0, 0, 1}, {2, 1, 3}}));
  EXPECT_TRUE(at::equal(part.of_token, at::tensor({0, 2, 2}, at::kInt)));
  EXPECT_TRUE(rows.slice(3, 3).runs.empty());
}

TEST(RowIndex, AMetaTensorIsOneRunAndOtherDtypesAreRefused) {
  EXPECT_EQ(ops::RowIndex(at::empty({7}, at::TensorOptions(at::kMeta).dtype(at::kInt))).runs, (Runs{{0, 0, 7}}));
  EXPECT_THROW(ops::RowIndex(at::zeros({7}, at::kLong)), InternalError);
}

}  // namespace tessera::testing
