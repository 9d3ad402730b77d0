// 8-bit blocks and int8 blocks on the device give the bits of ops/blockwise.h and ops/eight_bit.h.
#include "kernel_test.h"
#include "tessera/cuda/kernels.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/eight_bit.h"

namespace tessera::cuda {
namespace {

class Blocks : public KernelTest {};

void expect_the_cpus_codes(const std::vector<float>& x, const ops::DynamicMap& map, bool keep_sign, size_t offset) {
  const auto n = static_cast<int64_t>(x.size()), blocks = (n + 255) / 256;
  std::vector<uint8_t> codes(x.size());
  std::vector<float> scales(static_cast<size_t>(blocks)), back(x.size());
  for (int64_t b = 0; b < blocks; ++b)
    map.quantise(&codes[b * 256], &scales[b], &x[b * 256], std::min<int64_t>(256, n - b * 256), keep_sign);
  ops::dequantise_blocks(back.data(), codes.data(), scales.data(), n, map);

  DeviceArray<float> values(std::vector<float>(map.values().begin(), map.values().end())), from(x, offset),
      device_scales(scales.size()), device_back(x.size(), offset);
  DeviceArray<uint8_t> device_codes(x.size(), offset);
  check(launch_quantise_blocks(device_codes.data(), device_scales.data(), from.data(), n, values.data(), map.zero(),
                               keep_sign, nullptr));
  check(launch_dequantise_blocks(device_back.data(), device_codes.data(), device_scales.data(), n, values.data(),
                                 nullptr));
  expect_same(device_scales.values(), scales, "scales");
  expect_same(device_codes.values(), codes, "codes");
  expect_same(device_back.values(), back, "values");
}

TEST_F(Blocks, OfTheDynamicMapsHaveTheCpusBits) {
  for (const auto* map : {&ops::DynamicMap::with_sign(), &ops::DynamicMap::without_sign()})
    for (const bool keep_sign : {false, true})
      for (const int64_t n : kSizes)
        for (const size_t offset : {0u, 1u})
          expect_the_cpus_codes(test_values(n, static_cast<uint64_t>(n)), *map, keep_sign, offset);
}

TEST_F(Blocks, HaveTheCpusCodesOnBothSidesOfEveryBorder) {
  const auto& map = ops::DynamicMap::with_sign();
  std::vector<float> x;
  for (int c = 0; c + 1 < 256; ++c) {
    const float a = map.values()[c], b = map.values()[c + 1], middle = (a + b) / 2;
    for (const float value : {a, std::nextafter(middle, -2.0f), middle, std::nextafter(middle, 2.0f)}) {
      if (x.size() % 256 == 0) x.push_back(1.0f);  // the scale
      x.push_back(value);
    }
  }
  expect_the_cpus_codes(x, map, false, 0);
  expect_the_cpus_codes(x, map, true, 0);
}

TEST_F(Blocks, GiveNaNTheLastCodeAndTheScaleOfTheOthers) {
  const std::vector<float> x = {0.5f, kNaN, -kNaN, -0.25f};
  const auto& map = ops::DynamicMap::with_sign();
  expect_the_cpus_codes(x, map, false, 0);
  std::vector<uint8_t> codes(4);
  float scale = 0;
  map.quantise(codes.data(), &scale, x.data(), 4);
  EXPECT_EQ(scale, 0.5f);
  EXPECT_EQ(codes[1], 255);
  EXPECT_EQ(codes[2], 255);
}

class Int8 : public KernelTest {};

void expect_the_cpus_int8(const std::vector<float>& x, size_t offset) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<int8_t> q(x.size());
  std::vector<float> scales((x.size() + 255) / 256), back(x.size());
  ops::quantise_int8(q.data(), scales.data(), x.data(), n);
  ops::dequantise_int8(back.data(), q.data(), scales.data(), n);
  DeviceArray<float> from(x, offset), device_scales(scales.size()), device_back(x.size(), offset);
  DeviceArray<int8_t> device_q(x.size(), offset);
  check(launch_quantise_int8(device_q.data(), device_scales.data(), from.data(), n, nullptr));
  check(launch_dequantise_int8(device_back.data(), device_q.data(), device_scales.data(), n, nullptr));
  expect_same(device_scales.values(), scales, "scales");
  expect_same(device_q.values(), q, "steps");
  expect_same(device_back.values(), back, "values");
}

TEST_F(Int8, BlocksHaveTheCpusBits) {
  for (const int64_t n : kSizes)
    for (const size_t offset : {0u, 1u}) expect_the_cpus_int8(test_values(n, static_cast<uint64_t>(n)), offset);
}

TEST_F(Int8, SubnormalBlocksStayWithinTheirRange) {
  std::vector<float> x(256);
  for (int i = 0; i < 256; ++i) x[i] = static_cast<float>(i - 128) * 1.5f * kSubnormal;
  expect_the_cpus_int8(x, 0);
  std::vector<int8_t> q(256);
  float scale = 0;
  ops::quantise_int8(q.data(), &scale, x.data(), 256);
  EXPECT_EQ(scale, 2 * kSubnormal);
  EXPECT_EQ(q[0], -96) << "-192 of the smallest numbers, in steps of two";
  x.assign(256, -190 * kSubnormal);
  expect_the_cpus_int8(x, 0);
  ops::quantise_int8(q.data(), &scale, x.data(), 256);
  EXPECT_EQ(q[0], -127) << "190 steps do not fit, and do not come back with the other sign";
}

}  // namespace
}  // namespace tessera::cuda
