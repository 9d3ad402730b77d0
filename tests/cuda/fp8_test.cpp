// Matrices of 8-bit floats on the device have the bits of ops/eight_bit.h, whatever their tiles.
#include "tessera/ops/eight_bit.h"

#include <numeric>

#include "kernel_test.h"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {
namespace {

class Fp8 : public KernelTest, public ::testing::WithParamInterface<DType> {
 protected:
  bool e5m2() const { return GetParam() == DType::f8_e5m2; }

  void expect_the_cpus_bits(const std::vector<float>& x, int64_t rows, int64_t cols, int64_t tile_rows,
                            int64_t tile_cols) const {
    const ops::Fp8Tiles tiles{rows, cols, tile_rows, tile_cols, GetParam()};
    std::vector<uint8_t> codes(x.size());
    std::vector<float> scales(static_cast<size_t>(tiles.count())), back(x.size());
    ops::quantise_fp8(codes.data(), scales.data(), x.data(), tiles);
    ops::dequantise_fp8(back.data(), codes.data(), scales.data(), tiles);
    const Fp8Matrix matrix{rows, cols, tile_rows, tile_cols, e5m2()};
    DeviceArray<float> from(x), device_scales(scales.size()), device_back(x.size());
    DeviceArray<uint8_t> device_codes(x.size());
    check(launch_quantise_fp8(device_codes.data(), device_scales.data(), from.data(), matrix, nullptr));
    check(launch_dequantise_fp8(device_back.data(), device_codes.data(), device_scales.data(), matrix, nullptr));
    const std::string tile = " in tiles of " + std::to_string(tile_rows) + " x " + std::to_string(tile_cols);
    expect_same(device_scales.values(), scales, "scales" + tile);
    expect_same(device_codes.values(), codes, "codes" + tile);
    expect_same(device_back.values(), back, "values" + tile);
  }
};

TEST_P(Fp8, TilesOfAnyShapeHaveTheCpusBits) {
  const auto x = test_values(37 * 61, 1);
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 61}, {37, 61}, {16, 16}, {1, 16}, {37, 1}, {1, 1}, {5, 60}, {100, 100}})
    expect_the_cpus_bits(x, 37, 61, rows, cols);
}

TEST_P(Fp8, TilesThatManyThreadBlocksShareHaveTheCpusBits) {
  expect_the_cpus_bits(test_values(130 * 257, 2), 130, 257, 130, 257);
  expect_the_cpus_bits(test_values(2 * 17'000, 3), 2, 17'000, 1, 17'000);
  expect_the_cpus_bits(test_values(300 * 120, 4), 300, 120, 150, 119);
}

TEST_P(Fp8, ManyNarrowTilesHaveTheCpusBits) { expect_the_cpus_bits(test_values(400 * 33, 5), 400, 33, 1, 33); }

TEST_P(Fp8, EveryCodeHasTheCpusValue) {
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  std::vector<float> expected(256);
  ops::from_fp8(expected.data(), codes.data(), 256, GetParam());
  DeviceArray<uint8_t> from(codes);
  DeviceArray<float> scale(std::vector<float>{1.0f}), out(256);
  check(launch_dequantise_fp8(out.data(), from.data(), scale.data(), {1, 256, 1, 256, e5m2()}, nullptr));
  expect_same(out.values(), expected, "values");
}

TEST_P(Fp8, BothSidesOfEveryBorderHaveTheCpusCodes) {
  std::vector<float> x = {ops::largest(GetParam())};  // the scale is 1
  for (int c = 0; c < 0x7b; ++c) {
    const uint8_t codes[2] = {static_cast<uint8_t>(c), static_cast<uint8_t>(c + 1)};
    float values[2];
    ops::from_fp8(values, codes, 2, GetParam());
    const float middle = (values[0] + values[1]) / 2;
    for (const float value : {values[0], std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f)})
      x.insert(x.end(), {value, -value});
  }
  expect_the_cpus_bits(x, 1, static_cast<int64_t>(x.size()), 1, static_cast<int64_t>(x.size()));
}

TEST_P(Fp8, NaNStaysNaNAndChangesNoScale) {
  const std::vector<float> x = {1.0f, kNaN, -kNaN, -2.0f};
  expect_the_cpus_bits(x, 1, 4, 1, 4);
  std::vector<uint8_t> codes(4);
  float scale = 0;
  ops::quantise_fp8(codes.data(), &scale, x.data(), {1, 4, 1, 4, GetParam()});
  EXPECT_EQ(scale, 2 / ops::largest(GetParam()));
  EXPECT_EQ(codes[1], 0x7f);
  EXPECT_EQ(codes[2], 0x7f);
}

INSTANTIATE_TEST_SUITE_P(, Fp8, ::testing::Values(DType::f8_e4m3, DType::f8_e5m2),
                         [](const auto& info) { return info.param == DType::f8_e4m3 ? "e4m3" : "e5m2"; });

}  // namespace
}  // namespace tessera::cuda
