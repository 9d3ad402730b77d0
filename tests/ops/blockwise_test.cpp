#include "tessera/ops/blockwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/ops/reference.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

/// A block whose first element fixes the scale at 1, so that the others are what is coded.
std::vector<uint8_t> codes_of(const DynamicMap& map, std::vector<float> values) {
  std::vector<uint8_t> codes;
  for (size_t first = 0; first < values.size(); first += 255) {
    std::vector<float> block = {1.0f};
    block.insert(block.end(), values.begin() + first, values.begin() + std::min(first + 255, values.size()));
    std::vector<uint8_t> out(block.size());
    float scale = 0;
    map.quantise(out.data(), &scale, block.data(), static_cast<int64_t>(block.size()));
    EXPECT_EQ(scale, 1.0f);
    codes.insert(codes.end(), out.begin() + 1, out.end());
  }
  return codes;
}

TEST(DynamicMap, IsSortedAndAsymmetricWithSign) {
  const auto& with = DynamicMap::with_sign();
  EXPECT_TRUE(std::is_sorted(with.values().begin(), with.values().end()));
  EXPECT_EQ(with.zero(), 127);
  EXPECT_EQ(with.values()[255], 1.0f);
  EXPECT_NEAR(with.values()[0], -0.9930, 1e-4);
  const auto& without = DynamicMap::without_sign();
  EXPECT_TRUE(std::is_sorted(without.values().begin(), without.values().end()));
  EXPECT_EQ(without.zero(), 0);
  EXPECT_EQ(without.values()[255], 1.0f);
}

TEST(DynamicMap, EveryCodeIsTheNearestValueWithTiesUp) {
  for (const DynamicMap* map : {&DynamicMap::with_sign(), &DynamicMap::without_sign()}) {
    std::vector<float> values;
    for (int c = 0; c + 1 < 256; ++c) {  // the values, and every float around the middle of two
      const float a = map->values()[c], b = map->values()[c + 1];
      values.insert(values.end(), {a, b});
      float x = static_cast<float>((static_cast<double>(a) + b) / 2);
      for (int i = 0; i < 4; ++i) x = std::nextafter(x, -2.0f);
      for (int i = 0; i < 9; ++i) values.push_back(x), x = std::nextafter(x, 2.0f);
    }
    const at::Tensor spread =
        at::pow(10, at::rand({20000}) * 9 - 9) * (map->zero() ? at::randn({20000}).sign() : at::ones({20000}));
    values.insert(values.end(), spread.const_data_ptr<float>(), spread.const_data_ptr<float>() + spread.numel());
    if (!map->zero()) std::erase_if(values, [](float v) { return v < 0; });
    const std::vector<uint8_t> codes = codes_of(*map, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(codes[i], reference::nearest_code(map->values(), values[i])) << values[i];
  }
}

TEST(DynamicMap, ANegativeValueKeepsItsSignWhenAsked) {
  const std::vector<float> x = {1.0f, -1e-9f, 1e-9f, -0.0f, 0.0f};
  std::vector<uint8_t> codes(x.size());
  float scale;
  DynamicMap::with_sign().quantise(codes.data(), &scale, x.data(), 5, /*keep_sign=*/true);
  EXPECT_EQ(codes, (std::vector<uint8_t>{255, 126, 127, 127, 127}));
}

TEST(Blocks, ShareAScaleOf256ValuesAndTheLastMayBeShort) {
  const at::Tensor x = at::randn({1000}) * at::arange(1, 1001).to(at::kFloat);
  std::vector<uint8_t> codes(1000);
  std::vector<float> scales(4), back(1000);
  quantise_blocks(codes.data(), scales.data(), x.const_data_ptr<float>(), 1000, DynamicMap::with_sign());
  dequantise_blocks(back.data(), codes.data(), scales.data(), 1000, DynamicMap::with_sign());
  for (int64_t b = 0; b < 4; ++b) {
    const at::Tensor block = x.slice(0, b * 256, std::min<int64_t>(1000, (b + 1) * 256));
    EXPECT_EQ(scales[b], block.abs().max().item<float>());
  }
  for (int64_t i = 0; i < 1000; ++i)
    EXPECT_NEAR(back[i], x[i].item<float>(), 0.0075 * scales[i / 256]) << "half of the widest step of the map";
}

TEST(Blocks, OfZerosStayZero) {
  const std::vector<float> x(300, 0.0f);
  std::vector<uint8_t> codes(300);
  std::vector<float> scales(2), back(300, 1.0f);
  for (const DynamicMap* map : {&DynamicMap::with_sign(), &DynamicMap::without_sign()}) {
    quantise_blocks(codes.data(), scales.data(), x.data(), 300, *map);
    dequantise_blocks(back.data(), codes.data(), scales.data(), 300, *map);
    EXPECT_EQ(back, x);
  }
}

}  // namespace
}  // namespace tessera::ops
