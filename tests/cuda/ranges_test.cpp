// Conversions between fp32 and 16 bits on the device give the bits of ops/half.h and ops/bf16.h, also in place.
#include "half_values.h"
#include "tessera/ops/bf16.h"

namespace tessera::cuda {
namespace {

const std::vector<int64_t> kInPlaceSizes = {1, 7, 256, 2047, 2048, 2049, 4096, 5001, 100'003};  // up to seven launches

/// Every fp16 and bf16 value, what lies next to it, halfway to its neighbour and next to that: all borders of rounding.
std::vector<float> borders(c10::ScalarType type) {
  std::vector<float> x;
  for (uint32_t code = 0; code < 0x10000; code += type == at::kHalf ? 1 : 7) {
    const uint16_t codes[2] = {static_cast<uint16_t>(code), static_cast<uint16_t>(code + 1)};
    float values[2];
    ops::widen(values, codes, type, 2);
    const float middle = values[0] / 2 + values[1] / 2;
    for (const float value : {values[0], middle})
      x.insert(x.end(), {std::nextafter(value, -kInfinity), value, std::nextafter(value, kInfinity)});
  }
  return x;
}

class Ranges : public KernelTest, public ::testing::WithParamInterface<c10::ScalarType> {
 protected:
  c10::ScalarType half() const { return GetParam(); }
  HalfType type() const { return type_of(GetParam()); }

  void expect_the_cpus_halves(const std::vector<float>& x, size_t offset) const {
    const auto n = static_cast<int64_t>(x.size());
    DeviceArray<float> from(x, offset), rounded(x, offset);
    DeviceArray<uint16_t> out(x.size(), offset);
    check(launch_narrow(out.data(), from.data(), type(), n, nullptr));
    check(launch_round(rounded.data(), type(), n, nullptr));
    const std::vector<uint16_t> expected = narrowed(x, half());
    expect_same_halves(out.values(), expected, half(), "halves of " + std::to_string(n));
    expect_same(rounded.values(), widened(expected, half()), "rounded values of " + std::to_string(n));
  }
};

TEST_P(Ranges, NarrowedHaveTheCpusBits) {
  for (const int64_t n : kSizes)
    for (const size_t offset : {0u, 1u}) expect_the_cpus_halves(test_values(n, static_cast<uint64_t>(n)), offset);
}

TEST_P(Ranges, NarrowedHaveTheCpusBitsOnBothSidesOfEveryBorder) { expect_the_cpus_halves(borders(half()), 0); }

TEST_P(Ranges, WidenedHaveTheCpusBitsForEveryCode) {
  std::vector<uint16_t> codes(0x10000);
  for (size_t c = 0; c < codes.size(); ++c) codes[c] = static_cast<uint16_t>(c);
  for (const size_t offset : {0u, 1u}) {
    DeviceArray<uint16_t> from(codes, offset);
    DeviceArray<float> out(codes.size(), offset);
    check(launch_widen(out.data(), from.data(), type(), 0x10000, nullptr));
    expect_same(out.values(), widened(codes, half()), "values");
  }
}

/// `guard` values behind the range stay as they are; of the range's upper half nothing is promised.
TEST_P(Ranges, NarrowedInPlaceHaveTheCpusBitsAndTouchNothingElse) {
  constexpr size_t kGuard = 9;
  for (const int64_t n : kInPlaceSizes) {
    std::vector<float> x = test_values(n, static_cast<uint64_t>(n));
    const std::vector<uint16_t> expected = narrowed(x, half());
    x.insert(x.end(), kGuard, 17.0f);
    DeviceArray<float> values(x);
    check(launch_narrow_in_place(values.data(), type(), n, nullptr));
    const std::vector<float> after = values.values();
    std::vector<uint16_t> halves(expected.size());
    std::memcpy(halves.data(), after.data(), halves.size() * sizeof(uint16_t));
    expect_same_halves(halves, expected, half(), "halves of " + std::to_string(n));
    EXPECT_EQ(std::count(after.end() - kGuard, after.end(), 17.0f), kGuard) << n;
  }
}

/// What lies in the lower half of the range before is NaN, and must not come into any value.
TEST_P(Ranges, WidenedInPlaceHaveTheCpusBitsAndTouchNothingElse) {
  constexpr size_t kGuard = 9;
  for (const int64_t n : kInPlaceSizes) {
    const std::vector<uint16_t> halves = narrowed(test_values(n, static_cast<uint64_t>(n)), half());
    std::vector<float> x(static_cast<size_t>(n), kNaN), expected = widened(halves, half());
    std::memcpy(reinterpret_cast<char*>(x.data()) + 2 * n, halves.data(), halves.size() * sizeof(uint16_t));
    x.insert(x.end(), kGuard, 17.0f), expected.insert(expected.end(), kGuard, 17.0f);
    DeviceArray<float> values(x);
    check(launch_widen_in_place(values.data(), type(), n, nullptr));
    expect_same(values.values(), expected, "values of " + std::to_string(n));
  }
}

INSTANTIATE_TEST_SUITE_P(, Ranges, ::testing::Values(at::kBFloat16, at::kHalf), half_name);

class HighHalf : public KernelTest {};

TEST_F(HighHalf, HasTheCpusBits) {
  for (const int64_t n : kSizes)
    for (const size_t offset : {0u, 1u}) {
      const std::vector<float> x = test_values(n, static_cast<uint64_t>(n));
      std::vector<uint16_t> expected(x.size());
      ops::high_half(expected.data(), x.data(), n);
      DeviceArray<float> from(x, offset);
      DeviceArray<uint16_t> out(x.size(), offset);
      check(launch_high_half(out.data(), from.data(), n, nullptr));
      expect_same(out.values(), expected, "high halves");
    }
}

}  // namespace
}  // namespace tessera::cuda
