#include "tessera/engine/saved.h"

#include <gtest/gtest.h>

#include "tessera/engine/store/meter.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {
namespace {

struct Case {
  DType form;
  double bytes;  // of those of fp32, scales included
  double bound;  // relative error of normal values
};
constexpr Case kForms[] = {
    {DType::bf16, 0.5, 2e-3}, {DType::f16, 0.5, 3e-4}, {DType::i8, 0.27, 8e-3}, {DType::f8_e4m3, 0.27, 3e-2}};

TEST(Packed, ValuesComeBackWithinTheErrorThatIsMeasuredAndTheirMemoryIsFreeMeanwhile) {
  Meter::install();
  for (const Case& c : kForms) {
    const at::Tensor x = at::randn({300, 96}), whole = x.clone();
    const SavedStorage saved("site", x);
    ASSERT_TRUE(can_pack(saved, c.form));
    Packed packed;
    packed.add(saved, c.form);
    CompressionError error;
    const int64_t before = Meter::live();
    packed.compress(error);
    EXPECT_EQ(Meter::live(), before - saved.bytes() + packed_bytes(saved, c.form));
    EXPECT_LE(static_cast<double>(packed_bytes(saved, c.form)), c.bytes * static_cast<double>(saved.bytes()) + 64);
    packed.expand();
    EXPECT_EQ(Meter::live(), before);
    EXPECT_TRUE(packed.empty());
    const double found = ((x - whole).norm() / whole.norm()).item<double>();
    EXPECT_GT(found, 0);
    EXPECT_LT(found, c.bound);
    EXPECT_EQ(error.count, 1);
    EXPECT_NEAR(error.sum, found, 1e-6);
    EXPECT_EQ(error.sum, error.most);
  }
}

TEST(Packed, HalfFloatsGoIntoEightBitsAndNotIntoSixteen) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::randn({40, 64}).to(type), whole = x.clone();
    const SavedStorage saved("site", x);
    EXPECT_FALSE(can_pack(saved, DType::bf16) || can_pack(saved, DType::f16));
    Packed packed;
    packed.add(saved, DType::i8);
    CompressionError error;
    packed.compress(error);
    packed.expand();
    EXPECT_LT(((x - whole).norm() / whole.norm()).item<double>(), 1.2e-2);
  }
}

TEST(Packed, StatisticsAndWholeNumbersStayAsTheyAre) {
  EXPECT_FALSE(can_pack({"", at::ones({400})}, DType::i8)) << "a vector: one value for each row of something else";
  EXPECT_FALSE(can_pack({"", at::ones({12, 400, 1})}, DType::bf16)) << "the log-sum-exp of attention";
  EXPECT_FALSE(can_pack({"", at::ones({40, 40}, at::kInt)}, DType::i8));
}

TEST(Packed, ValuesBeyondFp16BecomeItsLargest) {
  at::Tensor x = at::full({8, 8}, 1e6f);
  Packed packed;
  packed.add({"", x}, DType::f16);
  CompressionError error;
  packed.compress(error);
  packed.expand();
  EXPECT_EQ(x.max().item<float>(), 65504.0f);
}

/// As the executor has them read, at the step's norm; those that find no room are read at once.
TEST(Packed, ErrorsOfSeveralStoragesWaitToBeReadWithTheSameBits) {
  const at::Tensor values = at::randn({3, 301, 96});
  for (const Case& c : kForms)
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      if (!can_pack({"", values[0].to(type)}, c.form)) continue;
      const auto errors_of = [&](CompressionError error) {
        Packed packed;
        for (int i = 0; i < 3; ++i) packed.add({"", values[i].to(type).clone().mul_(i + 1)}, c.form);
        packed.compress(error);
        return error;
      };
      const CompressionError at_once = errors_of({});
      EXPECT_EQ(at_once.count, 3);
      CompressionError waits = errors_of({.squares = at::full({3, 2}, NAN, at::kDouble)});
      EXPECT_EQ(waits.count, 0);
      EXPECT_EQ(waits.unread, 3);
      const auto* read = waits.squares.const_data_ptr<double>();
      waits.settle({read, read + 6});
      EXPECT_EQ(waits.sum, at_once.sum);
      EXPECT_EQ(waits.most, at_once.most);
      EXPECT_EQ(errors_of({.squares = at::zeros({1, 2}, at::kDouble)}).count, 2);
    }
}

TEST(Packed, RowsOfFp8HaveScalesOfTheirOwn) {
  const at::Tensor x = at::randn({4, 512});
  for (int row = 0; row < 4; ++row) x[row].mul_(std::pow(1000.0, row));
  const at::Tensor whole = x.clone();
  Packed packed;
  packed.add({"", x}, DType::f8_e4m3);
  CompressionError error;
  packed.compress(error);
  packed.expand();
  for (int row = 0; row < 4; ++row)
    EXPECT_LT(((x[row] - whole[row]).norm() / whole[row].norm()).item<double>(), 3e-2) << "row " << row;
}

}  // namespace
}  // namespace tessera::engine
