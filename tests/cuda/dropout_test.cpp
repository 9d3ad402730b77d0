// Dropout on the device has the bits of ops::drop_range: whatever the columns, the stride and where the random words begin.
#include "tessera/ops/dropout.h"
#include "half_values.h"

namespace tessera::cuda {
namespace {

class Dropout : public KernelTest {};

struct Shape {
  int64_t rows, cols, stride, width;
  uint64_t first;
};
// whole lanes; columns of a wider operand; odd ones, from the middle of a block of the generator on; beyond 32 bits
const Shape kShapes[] = {{33, 256, 256, 256, 0},
                         {300, 64, 64, 192, 64},
                         {7, 13, 17, 29, 5},
                         {5, 1, 3, 1, 3},
                         {9, 40, 40, 40, (uint64_t{1} << 40) + 8},
                         {0, 8, 8, 8, 0}};

ops::DropRange range_of(const Shape& s, double p) {
  const auto border = static_cast<uint32_t>(std::lround(p * 65536));
  return {.row = 0,
          .rows = s.rows,
          .cols = s.cols,
          .stride = s.stride,
          .width = s.width,
          .first = s.first,
          .key = RandomKey(3, Purpose::dropout, 7, 11),
          .border = border,
          .scale = static_cast<float>(65536.0 / (65536.0 - border))};
}
DropRows rows_of(const ops::DropRange& r) {
  const auto words = r.key.words();
  return {r.rows, r.cols, r.stride, r.width, {{words[0], words[1], words[2], words[3]}, r.first}, r.border, r.scale};
}

TEST_F(Dropout, OfFloatsHasTheCpusBits) {
  for (const Shape& shape : kShapes)
    for (const size_t offset : {0u, 1u}) {
      const ops::DropRange range = range_of(shape, 0.3);
      std::vector<float> expected = test_values(shape.rows * shape.stride + 5, 1);
      DeviceArray<float> x(expected, offset);
      check(launch_drop_floats(x.data(), rows_of(range), nullptr));
      const std::vector<float> before = expected;
      ops::drop_range(expected.data(), at::kFloat, range);
      expect_same(x.values(), expected, "floats");
      if (shape.rows * shape.cols < 1000) continue;
      int64_t kept = 0;
      for (int64_t r = 0; r < shape.rows; ++r)
        for (int64_t c = 0; c < shape.cols; ++c) kept += expected[static_cast<size_t>(r * shape.stride + c)] != 0;
      EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(shape.rows * shape.cols), 0.7, 0.03);
    }
}

TEST_F(Dropout, OfHalvesHasTheCpusBits) {
  for (const c10::ScalarType type : {at::kBFloat16, at::kHalf})
    for (const Shape& shape : kShapes)
      for (const size_t offset : {0u, 1u}) {
        const ops::DropRange range = range_of(shape, 0.05);
        std::vector<uint16_t> expected = narrowed(test_values(shape.rows * shape.stride + 5, 2), type);
        DeviceArray<uint16_t> x(expected, offset);
        check(launch_drop_halves(x.data(), type_of(type), rows_of(range), nullptr));
        ops::drop_range(expected.data(), type, range);
        expect_same_halves(x.values(), expected, type, "halves");
      }
}

}  // namespace
}  // namespace tessera::cuda
