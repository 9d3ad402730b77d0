#include "tessera/ops/eight_bit.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tessera/base/random.h"
#include "tessera/ops/reference.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

class Fp8Format : public ::testing::TestWithParam<DType> {};

TEST_P(Fp8Format, EveryCodeHasTheValueOfItsFields) {
  std::vector<uint8_t> codes(256);
  for (int c = 0; c < 256; ++c) codes[c] = static_cast<uint8_t>(c);
  std::vector<float> values(256);
  from_fp8(values.data(), codes.data(), 256, GetParam());
  for (int c = 0; c < 256; ++c) {
    const float expected = reference::fp8_value(codes[c], GetParam());
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(values[c])) << c;
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(values[c]), std::bit_cast<uint32_t>(expected)) << c;
  }
}

TEST_P(Fp8Format, CastsRoundToNearestEvenAndDoNotSaturate) {
  std::vector<float> x = {0.0f, -0.0f, INFINITY, -INFINITY, std::nanf(""), 448,  464,
                          465,  480,   57344,    61440,     61439,         1e9f, -1e-9f};
  for (int c = 0; c < 0x7f; ++c)  // values, and every middle of two with its neighbours
    for (const int sign : {0, 0x80}) {
      const float a = reference::fp8_value(static_cast<uint8_t>(c | sign), GetParam());
      const float b = reference::fp8_value(static_cast<uint8_t>((c + 1) | sign), GetParam());
      if (!std::isfinite(a) || !std::isfinite(b)) continue;
      const float middle = (a + b) / 2;
      x.insert(x.end(), {a, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, sign ? -1e9f : 1e9f)});
    }
  const RandomKey key(5, Purpose::test);
  for (uint64_t i = 0; i < 5000; ++i) x.push_back(std::bit_cast<float>(key.bits(i)));
  std::vector<uint8_t> codes(x.size());
  to_fp8(codes.data(), x.data(), static_cast<int64_t>(x.size()), GetParam());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(codes[i], reference::fp8_code(x[i], GetParam())) << x[i];
}

INSTANTIATE_TEST_SUITE_P(, Fp8Format, ::testing::Values(DType::f8_e4m3, DType::f8_e5m2),
                         [](const auto& info) { return info.param == DType::f8_e4m3 ? "e4m3" : "e5m2"; });

TEST(Fp8Tiles, OfAnySizeHaveTheirOwnScale) {
  const at::Tensor x = at::randn({37, 70}) * at::exp(at::randn({37, 1}) * 3);
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{37, 70}, {1, 70}, {32, 32}, {1, 32}, {1, 1}}) {
    const Fp8Tiles tiles{37, 70, rows, cols};
    std::vector<uint8_t> codes(37 * 70);
    std::vector<float> scales(tiles.count()), back(37 * 70);
    quantise_fp8(codes.data(), scales.data(), x.const_data_ptr<float>(), tiles);
    dequantise_fp8(back.data(), codes.data(), scales.data(), tiles);
    for (int64_t r = 0; r < 37; ++r)
      for (int64_t c = 0; c < 70; ++c) {
        const int64_t top = r / rows * rows, left = c / cols * cols;
        const at::Tensor tile =
            x.slice(0, top, std::min<int64_t>(37, top + rows)).slice(1, left, std::min<int64_t>(70, left + cols));
        const float scale = scales[r / rows * tiles.across() + c / cols];
        ASSERT_FLOAT_EQ(scale, tile.abs().max().item<float>() / 448);
        const float value = x[r][c].item<float>();
        ASSERT_NEAR(back[r * 70 + c], value, std::abs(value) / 16 + scale / 1024) << "half a step of three bits";
      }
  }
}

TEST(Int8Blocks, AreWithinHalfAStepAndZerosStayZero) {
  at::manual_seed(1);
  at::Tensor x = at::randn({1357});
  x.slice(0, 256, 512).zero_();
  std::vector<int8_t> q(1357);
  std::vector<float> scales(6), back(1357);
  quantise_int8(q.data(), scales.data(), x.const_data_ptr<float>(), 1357);
  dequantise_int8(back.data(), q.data(), scales.data(), 1357);
  EXPECT_EQ(scales[1], 0.0f);
  // half a step, and fp32's rounding of scale, quotient and product, which are at most 127 steps
  constexpr double kSteps = 0.5 + 127 * 3 * 0x1p-24;
  for (int64_t i = 0; i < 1357; ++i)
    ASSERT_LE(std::abs(double{back[i]} - static_cast<double>(x[i].item<float>())), scales[i / 256] * kSteps) << i;
}

}  // namespace
}  // namespace tessera::ops
