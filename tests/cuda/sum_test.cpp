// Sums on the device have the bits of their twins: parts in rank order, fp32 or 16-bit, and ops::sum_of_squares.
#include <memory>
#include <numeric>

#include "half_values.h"
#include "tessera/ops/adamw.h"

namespace tessera::cuda {
namespace {

/// Parts on the CPU and on the device.
template <class T>
struct Parts {
  std::vector<std::vector<T>> cpu;
  std::vector<std::unique_ptr<DeviceArray<T>>> device;
  std::vector<const T*> pointers;

  void add(std::vector<T> part, size_t offset) {
    device.push_back(std::make_unique<DeviceArray<T>>(part, offset));
    pointers.push_back(device.back()->data());
    cpu.push_back(std::move(part));
  }
  const void* const* addresses() const { return reinterpret_cast<const void* const*>(pointers.data()); }
};

void add(std::vector<float>& total, const std::vector<float>& part) {
  for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
}

class Sum : public KernelTest {};

TEST_F(Sum, OfPartsInOrderHasTheBitsOfALoop) {
  for (const int count : {1, 2, 5, 64})
    for (const int64_t n : {int64_t{1}, int64_t{257}, int64_t{2049}})
      for (const bool accumulate : {false, true}) {
        std::vector<float> expected = test_values(n, 99), total = test_values(n, 0);
        DeviceArray<float> out(expected);
        Parts<float> parts;
        for (int p = 0; p < count; ++p) parts.add(test_values(n, static_cast<uint64_t>(p)), 0);
        for (int p = 1; p < count; ++p) add(total, parts.cpu[static_cast<size_t>(p)]);
        for (int64_t i = 0; i < n; ++i) expected[i] = accumulate ? expected[i] + total[i] : total[i];
        check(launch_sum_in_order(out.data(), parts.pointers.data(), count, n, accumulate, nullptr));
        expect_same(out.values(), expected, "sum");
      }
}

TEST_F(Sum, OfNoneOrOfMoreThan64PartsIsRefused) {
  EXPECT_EQ(launch_sum_in_order(nullptr, nullptr, 0, 1, false, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(launch_sum_in_order(nullptr, nullptr, 65, 1, false, nullptr), cudaErrorInvalidValue);
  for (const int count : {0, 65}) {
    EXPECT_EQ(launch_sum_halves(nullptr, nullptr, count, HalfType::bf16, 1, false, nullptr), cudaErrorInvalidValue);
    EXPECT_EQ(launch_sum_halves_rounded(nullptr, nullptr, count, HalfType::bf16, 1, nullptr), cudaErrorInvalidValue);
  }
}

class SumOfHalves : public KernelTest, public ::testing::WithParamInterface<c10::ScalarType> {
 protected:
  struct Case {
    Parts<uint16_t> parts;
    std::vector<float> total;
  };
  Case parts(int count, int64_t n, size_t offset) const {
    Case made;
    for (int p = 0; p < count; ++p) {
      std::vector<float> x = test_values(n, static_cast<uint64_t>(p));
      x[0] = -0.0f;  // a sum of -0, which accumulating turns into 0
      made.parts.add(narrowed(x, GetParam()), offset);
      const std::vector<float> wide = widened(made.parts.cpu.back(), GetParam());
      if (p == 0)
        made.total = wide;
      else
        add(made.total, wide);
    }
    return made;
  }
};

TEST_P(SumOfHalves, HasTheBitsOfAReductionOnTheCpu) {
  for (const int count : {1, 2, 5, 64})
    for (const int64_t n : {1, 257, 2049})
      for (const size_t offset : {0u, 1u})
        for (const bool accumulate : {false, true}) {
          const Case c = parts(count, n, offset);
          const std::vector<float> before = test_values(n, 99);
          std::vector<float> expected = accumulate ? before : c.total;
          if (accumulate) add(expected, c.total);
          DeviceArray<float> out(before, offset);
          check(launch_sum_halves(out.data(), c.parts.addresses(), count, type_of(GetParam()), n, accumulate, nullptr));
          expect_same(out.values(), expected, "sum of " + std::to_string(count));
        }
}

TEST_P(SumOfHalves, RoundedHasTheCpusBitsAlsoWhereItReplacesAPart) {
  for (const int count : {1, 2, 5, 64})
    for (const int64_t n : {1, 257, 2049})
      for (const int replaced : {-1, 0, count - 1}) {
        const Case c = parts(count, n, 0);
        DeviceArray<uint16_t> apart(static_cast<size_t>(n));
        DeviceArray<uint16_t>& out = replaced < 0 ? apart : *c.parts.device[static_cast<size_t>(replaced)];
        check(launch_sum_halves_rounded(out.data(), c.parts.addresses(), count, type_of(GetParam()), n, nullptr));
        expect_same_halves(out.values(), narrowed(c.total, GetParam()), GetParam(),
                           "sum of " + std::to_string(count) + " into part " + std::to_string(replaced));
      }
}

INSTANTIATE_TEST_SUITE_P(, SumOfHalves, ::testing::Values(at::kBFloat16, at::kHalf), half_name);

class SumOfSquares : public KernelTest {
 protected:
  static double on_device(const std::vector<float>& x, size_t offset) {
    const auto n = static_cast<int64_t>(x.size());
    DeviceArray<float> values(x, offset);
    DeviceArray<double> partials(static_cast<size_t>(partial_sums(n))), sum(1);
    check(launch_sum_of_squares(sum.data(), partials.data(), values.data(), n, nullptr));
    return sum.values()[0];
  }
  /// Magnitudes over many decades, so that another order of additions has other bits.
  static std::vector<float> numbers(int64_t n) {
    std::vector<float> x = test_values(n, static_cast<uint64_t>(n));
    for (float& value : x)
      if (!std::isfinite(value) || std::abs(value) > 1e10f) value = 1.0f;
    return x;
  }
};

TEST_F(SumOfSquares, HasTheCpusBits) {
  const int64_t partial = kSquaresOfPartial;
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{32}, int64_t{33}, int64_t{511}, int64_t{515},
                          partial - 1, partial, partial + 1, 37 * partial + 545}) {
    const std::vector<float> x = numbers(n);
    const double expected = ops::sum_of_squares(x.data(), n);
    EXPECT_EQ(on_device(x, 0), expected) << n;
    EXPECT_EQ(on_device(x, 1), expected) << n << ", not aligned";
  }
}

TEST_F(SumOfSquares, OfLargeSmallInfiniteAndNaNIsTheCpus) {
  const float most = std::numeric_limits<float>::max();
  const std::vector<float> finite = {most, -most, kSubnormal, -kSubnormal, 0.0f, -0.0f};
  EXPECT_EQ(on_device(finite, 0), ops::sum_of_squares(finite.data(), 6));
  for (const size_t at : {0u, 70u, 99u}) {
    std::vector<float> x(100, 1.0f);
    x[at] = -kInfinity;
    EXPECT_EQ(on_device(x, 0), std::numeric_limits<double>::infinity()) << at;
    x[at] = kNaN;
    EXPECT_TRUE(std::isnan(on_device(x, 0))) << at;
  }
}

}  // namespace
}  // namespace tessera::cuda
