#include "tessera/ops/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tessera/base/random.h"
#include "tessera/ops/reference.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

/// Values of every size, ties and neighbours of ties included.
std::vector<float> many_values() {
  std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, 3.4028235e38f, 1e-45f, -1e-40f};
  const RandomKey key(1, Purpose::test);
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint32_t bits = key.bits(i);
    for (const uint32_t low : {bits & 0xffff, 0x0000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>((bits & 0xffff0000) | low);
      if (std::isfinite(value)) values.push_back(value);
    }
  }
  return values;
}

TEST(Bf16, RoundsToNearestEvenAsLibTorch) {
  const std::vector<float> x = many_values();
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> out(x.size());
  to_bf16(out.data(), x.data(), n);
  const at::Tensor expected = at::from_blob(const_cast<float*>(x.data()), {n}, at::kFloat).to(at::kBFloat16);
  std::vector<float> back(x.size());
  from_bf16(back.data(), out.data(), n);
  const at::Tensor values = expected.to(at::kFloat);
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(back[i], values.const_data_ptr<float>()[i]) << x[i];
  const float nan = std::nanf("");
  to_bf16(out.data(), &nan, 1);
  EXPECT_EQ(out[0], 0xffff);
}

TEST(SplitMasters, TwoHalvesGiveBackEveryBit) {
  const std::vector<float> x = many_values();
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> high(x.size()), low(x.size()), alone(x.size());
  std::vector<float> back(x.size());
  split_fp32(high.data(), low.data(), x.data(), n);
  join_fp32(back.data(), high.data(), low.data(), n);
  high_half(alone.data(), x.data(), n);
  EXPECT_EQ(high, alone);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), bits);
    // design: hi = (bits + 0x8000) >> 16, rest = bits - (hi << 16)
    ASSERT_EQ(high[i], static_cast<uint16_t>((bits + 0x8000) >> 16));
    ASSERT_EQ(static_cast<int16_t>(low[i]), static_cast<int32_t>(bits - ((bits + 0x8000) >> 16 << 16)));
  }
}

TEST(StochasticRounding, GivesOneOfTheTwoNeighboursAndTheMeanOfMany) {
  constexpr int64_t kDraws = 40000;
  std::vector<uint16_t> random(kDraws), out(kDraws);
  RandomKey(3, Purpose::rounding, 7, 11).half_words(random.data(), 0, kDraws);
  for (const float x : {1.001f, -0.3f, 123456.7f, 1.0f, -2.5f, 0.0f, 3e-39f}) {
    const std::vector<float> same(kDraws, x);
    round_stochastic(out.data(), same.data(), random.data(), kDraws);
    const auto [inner, outer] = reference::bf16_neighbours(x);
    double sum = 0;
    for (const uint16_t bits : out) {
      ASSERT_TRUE(bits == inner || bits == outer) << x;
      float value;
      from_bf16(&value, &bits, 1);
      sum += value;
    }
    const uint16_t two[] = {inner, outer};
    float ends[2];
    from_bf16(ends, two, 2);
    const double ulp = std::abs(static_cast<double>(ends[1]) - ends[0]);
    EXPECT_NEAR(sum / kDraws, x, 4 * ulp / (2 * std::sqrt(kDraws)) + 1e-12 * std::abs(x)) << x;
  }
}

TEST(StochasticRounding, LeavesInfiniteAndNaNAsTheyAre) {
  const std::vector<float> x = {INFINITY, -INFINITY, std::bit_cast<float>(0x7f800001u)};
  const std::vector<uint16_t> random(3, 0);
  std::vector<uint16_t> out(3);
  round_stochastic(out.data(), x.data(), random.data(), 3);
  EXPECT_EQ(out[0], 0x7f80);
  EXPECT_EQ(out[1], 0xff80);
  float back;
  from_bf16(&back, &out[2], 1);
  EXPECT_TRUE(std::isnan(back));
}

}  // namespace
}  // namespace tessera::ops
