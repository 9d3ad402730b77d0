// AdamW over every form of masters and moments, compared with fp32.
#include <gtest/gtest.h>

#include <bit>

#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

constexpr int64_t kCount = 1000;  // three whole blocks and a short one
constexpr int kSteps = 20;

AdamWStep at_step(int step) { return {.step = step, .lr = 1e-3, .weight_decay = 0.1, .grad_scale = 0.5}; }

std::vector<at::Tensor> gradients() {
  std::vector<at::Tensor> grads;
  for (int s = 0; s < kSteps; ++s) grads.push_back(at::randn({kCount}) * 0.1);
  return grads;
}

float* data(at::Tensor& t) { return t.mutable_data_ptr<float>(); }

TEST(AdamWForms, SplitMastersAreFp32MastersBitForBit) {
  at::Tensor p = at::randn({kCount}), m = at::zeros({kCount}), v = at::zeros({kCount});
  at::Tensor m2 = m.clone(), v2 = v.clone(), joined = at::empty({kCount});
  std::vector<uint16_t> high(kCount), low(kCount);
  split_fp32(high.data(), low.data(), data(p), kCount);
  const auto grads = gradients();
  for (int s = 0; s < kSteps; ++s) {
    const float* g = grads[s].const_data_ptr<float>();
    adamw(data(p), data(m), data(v), g, kCount, at_step(s + 1));
    adamw({.bf16 = high.data(), .low = low.data()}, {.fp32 = data(m2)}, {.fp32 = data(v2)}, g, kCount, at_step(s + 1));
  }
  join_fp32(data(joined), high.data(), low.data(), kCount);
  EXPECT_TRUE(at::equal(joined, p));
  EXPECT_TRUE(at::equal(m2, m));
  EXPECT_TRUE(at::equal(v2, v));
}

TEST(AdamWForms, QuantisedMomentsMoveTheParametersBeforeTheyAreRounded) {
  at::Tensor p = at::randn({kCount}), start = p.clone(), m = at::zeros({kCount}), v = at::zeros({kCount}),
             p8 = p.clone();
  std::vector<uint8_t> mc(kCount), vc(kCount);
  std::vector<float> ms(4), vs(4);
  const auto grads = gradients();
  for (int s = 0; s < kSteps; ++s) {
    const float* g = grads[s].const_data_ptr<float>();
    adamw(data(p), data(m), data(v), g, kCount, at_step(s + 1));
    adamw({.fp32 = data(p8)}, {.codes = mc.data(), .scales = ms.data()}, {.codes = vc.data(), .scales = vs.data()}, g,
          kCount, at_step(s + 1));
    if (s == 0) {
      EXPECT_TRUE(at::equal(p8, p)) << "the first step starts from zeros and does not see its own rounding";
    }
  }
  const double moved = (p - start).abs().max().item<double>(), off = (p8 - p).square().mean().sqrt().item<double>();
  EXPECT_LE(off, 0.05 * moved);
  EXPECT_GT(off, 0);
  std::vector<float> back(kCount);
  dequantise_blocks(back.data(), mc.data(), ms.data(), kCount, DynamicMap::with_sign());
  for (int64_t i = 0; i < kCount; ++i) EXPECT_NEAR(back[i], m[i].item<float>(), 0.05 * ms[i / 256]);
}

/// Parameters after kSteps with bf16 masters and moments, done in pieces of the given sizes.
std::vector<uint16_t> in_pieces(const at::Tensor& start, const std::vector<at::Tensor>& grads,
                                const std::vector<int64_t>& sizes) {
  std::vector<uint16_t> p(kCount), m(kCount), v(kCount);
  to_bf16(p.data(), start.const_data_ptr<float>(), kCount);
  for (int s = 0; s < kSteps; ++s) {
    const RandomKey keys[] = {{1, Purpose::rounding, static_cast<uint64_t>(s), 1},
                              {1, Purpose::rounding, static_cast<uint64_t>(s), 2},
                              {1, Purpose::rounding, static_cast<uint64_t>(s), 3}};
    int64_t at = 0;
    for (const int64_t n : sizes) {
      const auto first = static_cast<uint64_t>(at);
      adamw({.bf16 = p.data() + at, .rounding = {&keys[0], first}},
            {.bf16 = m.data() + at, .rounding = {&keys[1], first}},
            {.bf16 = v.data() + at, .rounding = {&keys[2], first}}, grads[s].const_data_ptr<float>() + at, n,
            at_step(s + 1));
      at += n;
    }
  }
  return p;
}

TEST(AdamWForms, StochasticRoundingDependsOnStepAndElementNotOnTheCut) {
  const at::Tensor start = at::randn({kCount});
  const auto grads = gradients();
  const auto whole = in_pieces(start, grads, {kCount});
  EXPECT_EQ(whole, in_pieces(start, grads, {256, 512, 232}));
}

TEST(AdamWForms, StochasticMastersFollowFp32OnesOnAverage) {
  const at::Tensor start = at::randn({kCount});
  const auto grads = gradients();
  at::Tensor p = start.to(at::kBFloat16).to(at::kFloat), m = at::zeros({kCount}), v = at::zeros({kCount});
  for (int s = 0; s < kSteps; ++s)
    adamw(data(p), data(m), data(v), grads[s].const_data_ptr<float>(), kCount, at_step(s + 1));
  const auto rounded = in_pieces(start, grads, {kCount});
  at::Tensor values = at::empty({kCount});
  from_bf16(data(values), rounded.data(), kCount);
  // Rounding to nearest would leave every value over 0.5 where it was: a step of 1e-3 is under half an ulp of bf16.
  const at::Tensor large = start.abs().gt(1.0);
  const double moved = (p - start).masked_select(large).mean().item<double>();
  const double followed = (values - start).masked_select(large).mean().item<double>();
  EXPECT_NEAR(followed, moved, 2e-3);
  EXPECT_LE((values - p).abs().max().item<double>(), 0.1);
  const at::Tensor stayed = values.eq(start.to(at::kBFloat16).to(at::kFloat)).masked_select(large).to(at::kFloat);
  EXPECT_LT(stayed.mean().item<double>(), 0.7);
}

}  // namespace
}  // namespace tessera::ops
