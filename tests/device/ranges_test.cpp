// ops/ranges.h on the device: the bits of the CPU, and bytes that the host sees through a copy.
#include "tessera/ops/ranges.h"

#include <gtest/gtest.h>

#include <numeric>

#include "same_bits.h"
#include "tessera/base/check.h"
#include "tessera/ops/kernels.h"

namespace tessera::testing {
namespace {

class RangesOnDevice : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!device::used()) device::use(simulated_device(), 0);
    device::enter_thread();  // tests before may have left it on another
  }
  static at::Tensor values(int64_t count, double step) { return at::sin(at::arange(count, at::kFloat) * step).mul_(3); }
  /// Wherever the two lie.
  static void expect_bits(const at::Tensor& found, const at::Tensor& expected) {
    const at::Tensor got = found.cpu(), want = expected.cpu();
    ASSERT_EQ(got.nbytes(), want.nbytes());
    EXPECT_EQ(std::memcmp(got.const_data_ptr(), want.const_data_ptr(), want.nbytes()), 0);
  }
  static at::Tensor there(const at::Tensor& t) { return t.to(device::here()); }
};

TEST_F(RangesOnDevice, ConvertAsOnTheCpu) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = values(5001, 0.37);
    at::Tensor rounded = at::empty({5001}, type), far = there(at::zeros({5001}, type)), wide = at::empty({5001});
    ops::narrow(rounded, x);
    ops::narrow(far, there(x));
    expect_bits(far, rounded);
    at::Tensor far_wide = there(at::zeros({5001}));
    ops::widen(wide, rounded);
    ops::widen(far_wide, far);
    expect_bits(far_wide, wide);
    at::Tensor in_place = x.clone(), far_in_place = there(x);
    ops::round_values(in_place, type);
    ops::round_values(far_in_place, type);
    expect_bits(far_in_place, in_place);
    expect_bits(in_place, wide);
    ops::narrow_in_place(in_place, type), ops::narrow_in_place(far_in_place, type);
    ops::copy_bytes(in_place.view(type).narrow(0, 5001, 5001), in_place.view(type).narrow(0, 0, 5001).clone());
    ops::copy_bytes(far_in_place.view(type).narrow(0, 5001, 5001), in_place.view(type).narrow(0, 0, 5001));
    ops::widen_in_place(in_place, type), ops::widen_in_place(far_in_place, type);
    expect_bits(far_in_place, in_place);
  }
}

TEST_F(RangesOnDevice, SumAsOnTheCpu) {
  const at::Tensor x = values(200'003, 0.11);
  const at::Tensor squares = at::zeros({1}, at::kDouble), far_squares = there(squares);
  ops::sum_of_squares(squares, x), ops::sum_of_squares(far_squares, there(x));
  expect_bits(far_squares, squares);
  std::vector<at::Tensor> parts, far;
  for (int p = 0; p < 5; ++p) {
    parts.push_back(values(3001, 0.1 + 0.21 * p).to(at::kBFloat16));
    far.push_back(there(parts.back()));
  }
  for (const bool accumulate : {false, true}) {
    const at::Tensor out = values(3001, 2), far_out = there(out);
    ops::sum_halves(out, parts, accumulate);
    ops::sum_halves(far_out, far, accumulate);
    expect_bits(far_out, out);
  }
  ops::sum_halves_rounded(parts[2], parts);
  ops::sum_halves_rounded(far[2], far);
  expect_bits(far[2], parts[2]);
}

TEST_F(RangesOnDevice, OfTwoDevicesAreRefusedByName) {
  const at::Tensor x = values(10, 1);
  EXPECT_THROW(ops::narrow(there(at::zeros({10}, at::kHalf)), x), InternalError);
  EXPECT_THROW(ops::high_half(at::zeros({10}, at::kBFloat16), there(x)), InternalError);
}

/// Where the device's table has a function for an operator, it takes the place of LibTorch's alone.
TEST_F(RangesOnDevice, TheTableOfKernelsIsLibTorchsButForTheRowsThatTheDeviceHas) {
  at::Tensor x = at::ones({40, 96});
  const at::Tensor far = there(x);
  const ops::Kernels &own = ops::kernels(far), &libtorchs = ops::aten_kernels();
  EXPECT_EQ(&own, &ops::fused_kernels());
  EXPECT_EQ(&ops::kernels(x.to(at::kMeta)), &own) << "meta tensors stand for those of the process's device";
  EXPECT_NE(own.layer_norm, libtorchs.layer_norm);
  EXPECT_EQ(own.frozen_linear, libtorchs.frozen_linear);
  EXPECT_EQ(own.add_error, libtorchs.add_error);
  const ops::Dropout drop{.p = 0.3, .seed = 1, .step = 2, .site = 3, .runs = {{0, 40, 5, 7}}};
  ops::drop_rows(x, drop, 0), ops::drop_rows(far, drop, 0);
  expect_bits(far, x);
}

TEST_F(RangesOnDevice, BytesChangePlaces) {
  const at::Tensor one = values(9'000'001, 0.2), other = values(9'000'001, 0.3);  // more than a piece
  const at::Tensor far = there(one), near = other.clone();
  const at::Tensor between = there(at::empty({1 << 20}));
  ops::swap_bytes(far, near, between);
  device::used()->wait();
  expect_bits(far, other);
  expect_bits(near, one);
}

TEST_F(RangesOnDevice, TheHostReadsAndWritesACopy) {
  const at::Tensor x = values(1000, 0.5), far = there(x);
  ops::HostBytes bytes(ops::address(far), 4000, ops::on_device(far));
  EXPECT_EQ(std::memcmp(bytes.data(), x.const_data_ptr(), 4000), 0);
  std::iota(bytes.as<float>(), bytes.as<float>() + 1000, 0.0f);
  expect_bits(far, x);
  bytes.keep();
  expect_bits(far, at::arange(1000, at::kFloat));
}

}  // namespace
}  // namespace tessera::testing
