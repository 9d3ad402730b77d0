// Attention whose keys come in blocks equals attention to all of them at once, gradients too.
#include <gtest/gtest.h>

#include "tables.h"
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/ops.h"

namespace tessera::ops {
namespace {

using at::Tensor;

using AttentionParts = testing::WithEachTable<>;

constexpr int64_t kHeads = 3, kWidth = 48, kQueries = 70, kKeys = 150;

TEST_P(AttentionParts, OfTwoBlocksOfKeysMergeToTheWhole) {
  at::manual_seed(1);
  const Tensor q = at::randn({kQueries, kWidth}), k = at::randn({kKeys, kWidth}), v = at::randn({kKeys, kWidth});
  const auto result = [] { return AttentionResult{at::empty({kQueries, kWidth}), at::empty({kHeads, kQueries})}; };
  const AttentionResult whole = result(), sum = result(), part = result();
  attention_forward({q, k, v}, kHeads, {0, kQueries}, {0, kKeys}, whole);
  const int64_t cut = 37, rest = kKeys - cut;
  attention_forward({q, k.narrow(0, 0, cut), v.narrow(0, 0, cut)}, kHeads, {0, kQueries}, {0, cut}, sum);
  attention_forward({q, k.narrow(0, cut, rest), v.narrow(0, cut, rest)}, kHeads, {0, kQueries}, {0, rest}, part);
  merge_attention(sum, part, kHeads);
  EXPECT_LE((sum.out - whole.out).abs().max().item<float>(), 1e-6);
  EXPECT_LE((sum.lse - whole.lse).abs().max().item<float>(), 2e-6);

  const Tensor d_out = at::randn({kQueries, kWidth}), delta = attention_delta(whole.out, d_out, kHeads);
  const AttentionInputs all = {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  attention_backward({q, k, v}, d_out, whole.lse, delta, kHeads, {0, kQueries}, {0, kKeys}, all);
  Tensor dq = at::zeros_like(q);
  for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, {cut, rest}}) {
    const AttentionInputs block = {at::empty_like(q), at::empty({count, kWidth}), at::empty({count, kWidth})};
    attention_backward({q, k.narrow(0, first, count), v.narrow(0, first, count)}, d_out, whole.lse, delta, kHeads,
                       {0, kQueries}, {0, count}, block);
    dq += block.q;
    EXPECT_LE((block.k - all.k.narrow(0, first, count)).abs().max().item<float>(), 1e-6);
    EXPECT_LE((block.v - all.v.narrow(0, first, count)).abs().max().item<float>(), 1e-6);
  }
  EXPECT_LE((dq - all.q).abs().max().item<float>(), 2e-6);
}

// Operands of 16 bits, sums of fp32: nothing is rounded on the way, so the bound is that of fp32.
TEST_P(AttentionParts, OfOperandsOf16BitsAreAddedUpInFp32) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(3);
    const auto drawn = [&](int64_t rows) { return at::randn({rows, kWidth}).to(type); };
    const Tensor q = drawn(kQueries), k = drawn(kKeys), v = drawn(kKeys), d_out = drawn(kQueries);
    const auto run = [&](at::ScalarType operands, int64_t cut) {
      const Tensor qs = q.to(operands), ks = k.to(operands), vs = v.to(operands), up = d_out.to(operands);
      const auto result = [] { return AttentionResult{at::empty({kQueries, kWidth}), at::empty({kHeads, kQueries})}; };
      const AttentionResult sum = result(), part = result();
      const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, cut}, {cut, kKeys - cut}};
      for (const auto& [first, count] : blocks) {
        if (count == 0) continue;
        attention_forward({qs, ks.narrow(0, first, count), vs.narrow(0, first, count)}, kHeads, {0, kQueries},
                          {0, count}, first == 0 ? sum : part);
        if (first > 0) merge_attention(sum, part, kHeads);
      }
      const Tensor delta = attention_delta(sum.out, up.to(at::kFloat), kHeads);
      const AttentionInputs sums = {at::zeros({kQueries, kWidth}), at::empty({kKeys, kWidth}),
                                    at::empty({kKeys, kWidth})};
      for (const auto& [first, count] : blocks) {
        if (count == 0) continue;
        const Tensor dq = at::empty({kQueries, kWidth});
        attention_backward({qs, ks.narrow(0, first, count), vs.narrow(0, first, count)}, up, sum.lse, delta, kHeads,
                           {0, kQueries}, {0, count},
                           {dq, sums.k.narrow(0, first, count), sums.v.narrow(0, first, count)});
        sums.q.add_(dq);
      }
      return std::vector<Tensor>{sum.out, sum.lse, sums.q, sums.k, sums.v};
    };
    const auto whole = run(at::kFloat, kKeys), blocks = run(type, 37);
    for (size_t i = 0; i < whole.size(); ++i)
      EXPECT_LE((whole[i] - blocks[i]).abs().max().item<float>(), 3e-6) << "result " << i;
  }
}

// A product with the output that the flash kernel is given instead is delta, also where output and gradient are nearly
// orthogonal, large or 0.
TEST(FlashBackward, TheOutputAlongItsGradientHasItsDelta) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::manual_seed(4);
    const Tensor d_out = at::randn({kQueries, kWidth}), out = at::randn({kQueries, kWidth});
    d_out[5].zero_(), d_out[6].mul_(200), d_out[7].mul_(1e-3);
    const Tensor up = d_out.to(type), delta = attention_delta(out.to(type), up, kHeads);
    const Tensor along = aten::output_along(up, delta, kHeads);
    EXPECT_EQ(along.scalar_type(), type);
    const Tensor found = attention_delta(along, up, kHeads);
    const double half_ulp = type == at::kHalf ? 0x1p-11 : 0x1p-9;
    EXPECT_LE(((found - delta).abs() - half_ulp * delta.abs()).max().item<float>(), 1e-6);
    EXPECT_EQ(along[5].abs().max().item<float>(), 0);
  }
}

TEST_P(AttentionParts, ASampleWithoutQueriesLeavesItsKeysWithoutGradient) {
  at::manual_seed(2);
  const Tensor q = at::randn({8, kWidth}).requires_grad_(), k = at::randn({12, kWidth}).requires_grad_(),
               v = at::randn({12, kWidth}).requires_grad_();
  // The queries of the first sample are on another rank.
  const Tensor out = attention(q, k, v, kHeads, {0, 0, 8}, {0, 5, 12});
  out.sum().backward();
  EXPECT_EQ(k.grad().narrow(0, 0, 5).abs().sum().item<float>(), 0);
  EXPECT_EQ(v.grad().narrow(0, 0, 5).abs().sum().item<float>(), 0);
  const Tensor alone =
      attention(q.detach(), k.detach().narrow(0, 5, 7), v.detach().narrow(0, 5, 7), kHeads, {0, 8}, {0, 7});
  EXPECT_TRUE(at::equal(out.detach(), alone));
}

INSTANTIATE_TEST_SUITE_P(, AttentionParts, testing::each_table(), testing::table_name);

}  // namespace
}  // namespace tessera::ops
