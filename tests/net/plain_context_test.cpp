#include "tessera/net/plain_context.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::net {

namespace {

constexpr double kEps = 1e-6;

/// Two samples of 2 and 3 tokens with 4 and 1 context rows, one modulation row each, heads of 4 channels.
Tokens two_samples() {
  Tokens tokens;
  tokens.offsets = {0, 2, 5};
  tokens.spaces = {Space{.offsets = {0, 4, 5}}};
  tokens.rows = ops::RowIndex(at::tensor({0, 0, 1, 1, 1}, at::kInt));
  const at::Tensor angles = at::arange(10, at::kFloat).view({5, 2});
  tokens.cos = angles.cos();
  tokens.sin = angles.sin();
  return tokens;
}

bool close(const Tensor& a, const Tensor& b) { return at::allclose(a, b, 1e-5, 1e-6); }

}  // namespace

TEST(PlainContext, LinearTakesABiasOnlyWhereThereIsOne) {
  const Tokens tokens = two_samples();
  const WeightMap weights = {
      {"b.a.weight", at::randn({3, 8})}, {"b.a.bias", at::randn({3})}, {"b.c.weight", at::randn({3, 2, 2, 2})}};
  PlainContext ctx(weights, "b.", tokens);
  const Tensor x = at::randn({5, 8});
  EXPECT_TRUE(close(ctx.linear("a", x), at::mm(x, weights.at("b.a.weight").t()) + weights.at("b.a.bias")));
  EXPECT_TRUE(close(ctx.linear("c", x), at::mm(x, weights.at("b.c.weight").view({3, 8}).t())))
      << "patch convolutions are flattened";
  EXPECT_TRUE(close(ctx.linear("a", x, {.act = Act::gelu_tanh}), ctx.linear("a", at::gelu(x, "tanh"))));
}

TEST(PlainContext, ModulationUsesTheRowOfEachToken) {
  const Tokens tokens = two_samples();
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor x = at::randn({5, 8}), shift = at::randn({2, 8}), scale = at::randn({2, 8});
  const Tensor y = ctx.norm("norm", x, {.eps = kEps, .shift = &shift, .scale = &scale}),
               z = ctx.residual("gate", x, y, &scale);
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t row = i < 2 ? 0 : 1;
    const Tensor centred = x[i] - x[i].mean();
    const Tensor normal = centred / (centred.square().mean() + kEps).sqrt();
    EXPECT_TRUE(close(y[i], normal * (1 + scale[row]) + shift[row]));
    EXPECT_TRUE(close(z[i], x[i] + y[i] * scale[row]));
  }
}

TEST(PlainContext, RopeTurnsNeighbouringPairsAfterTheFullWidthNorm) {
  const Tokens tokens = two_samples();
  const WeightMap weights = {{"q.weight", at::randn({8})}};
  PlainContext ctx(weights, "", tokens);
  const Tensor x = at::randn({5, 8}), y = ctx.norm("q", x, {.kind = Norm::rms, .eps = kEps, .rope = 2}),
               normal = ctx.norm("q", x, {.kind = Norm::rms, .eps = kEps});
  EXPECT_TRUE(close(normal[3], x[3] / (x[3].square().mean() + kEps).sqrt() * weights.at("q.weight")));
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t pair = 0; pair < 2; ++pair) {
      const int64_t at = head * 4 + pair * 2;
      const double re = normal[3][at].item<double>(), im = normal[3][at + 1].item<double>(), angle = 6 + pair;
      EXPECT_NEAR(y[3][at].item<double>(), re * std::cos(angle) - im * std::sin(angle), 1e-5);
      EXPECT_NEAR(y[3][at + 1].item<double>(), re * std::sin(angle) + im * std::cos(angle), 1e-5);
    }
  }
}

TEST(PlainContext, AttentionStaysWithinItsSample) {
  const Tokens tokens = two_samples();
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor q = at::randn({5, 8}), k = at::randn({5, 8}), v = at::randn({5, 8});
  const Tensor self = ctx.attention("a", q, k, v, 2);
  const auto part = [](const Tensor& x, int64_t a, int64_t b) {
    return x.slice(0, a, b).reshape({b - a, 2, 4}).transpose(0, 1).unsqueeze(0);
  };
  const Tensor expected = at::scaled_dot_product_attention(part(q, 2, 5), part(k, 2, 5), part(v, 2, 5));
  EXPECT_TRUE(close(self.slice(0, 2, 5), expected[0].transpose(0, 1).reshape({3, 8})));
  const Tensor cross = ctx.attention("a", q, k, v, 2, {.k = 1});
  EXPECT_TRUE(close(cross.slice(0, 2, 5), v.slice(0, 4, 5).expand({3, 8})))
      << "the second sample has a single context row";
}

TEST(PlainContext, SegmentsSayWhoMeetsWhomAndInWhichOrder) {
  Tokens tokens = two_samples();
  tokens.segments = {{.ranges = {{0, 2, 0, 2}, {2, 5, 2, 5}}, .order = at::tensor({4, 1, 0, 3, 2}, at::kLong)}};
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor q = at::randn({5, 8}), k = at::randn({5, 8}), v = at::randn({5, 8});
  const Tensor out = ctx.attention("a", q, k, v, 1, tokens.segments[0]);
  const Tensor rows = at::tensor({4, 1}, at::kLong);
  const auto some = [&](const Tensor& x) { return x.index_select(0, rows); };
  const Tensor expected = at::mm(at::softmax(at::mm(some(q), some(k).t()) / std::sqrt(8.0), -1), some(v));
  EXPECT_TRUE(close(some(out), expected)) << "the last token and the second meet each other alone";
}

TEST(PlainContext, LinearAttentionWeighsByProductsOfItsOwn) {
  const Tokens tokens = two_samples();
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor q = at::rand({5, 4}), k = at::rand({5, 4}), v = at::randn({5, 4});
  const Tensor out = ctx.linear_attention("a", q, k, v, 1, kEps);
  const Tensor weights = at::mm(q.slice(0, 2, 5), k.slice(0, 2, 5).t());  // [queries, keys] of the second sample
  EXPECT_TRUE(close(out.slice(0, 2, 5), at::mm(weights, v.slice(0, 2, 5)) / (weights.sum(1, true) + kEps)));
}

TEST(PlainContext, AConvolutionSeesNeighboursOfItsOwnSampleOnly) {
  Tokens tokens = two_samples();
  tokens.shapes = {{1, 1, 2}, {1, 3, 1}};
  const WeightMap weights = {{"c.weight", at::ones({8, 1, 1, 3, 3})}};
  PlainContext ctx(weights, "", tokens);
  const Tensor x = at::randn({5, 8}), y = ctx.conv("c", x, {.kernel = {1, 3, 3}});
  EXPECT_TRUE(close(y[1], x[0] + x[1]));
  EXPECT_TRUE(close(y[2], x[2] + x[3]));
  EXPECT_TRUE(close(y[3], x[2] + x[3] + x[4]));
}

TEST(PlainContext, UnfoldedRowsTimesAWeightAreAConvolutionOverAllChannels) {
  Tokens tokens = two_samples();
  tokens.shapes = {{2, 1, 1}, {3, 1, 1}};
  const WeightMap weights = {{"c.weight", at::randn({4, 8, 3, 1})}};
  PlainContext ctx(weights, "", tokens);
  const Tensor x = at::randn({5, 8}), y = ctx.linear("c", ctx.unfold("c.rows", x, {.kernel = {3, 1, 1}}));
  const Tensor w = weights.at("c.weight").squeeze(3);
  for (const auto& [begin, end] : {std::pair(0, 2), std::pair(2, 5)})
    EXPECT_TRUE(
        close(y.slice(0, begin, end), at::conv1d(x.slice(0, begin, end).t().unsqueeze(0), w, {}, 1, 1).squeeze(0).t()));
}

TEST(PlainContext, PartsOfTheTokensAreJoinedInTheirPlaces) {
  Tokens tokens = two_samples();
  tokens.spaces = {Space{.offsets = {0, 1, 2}, .ranges = {{0, 1}, {2, 3}}},
                   Space{.offsets = {0, 1, 3}, .ranges = {{1, 2}, {3, 5}}}};
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor x = at::randn({5, 8}), first = ctx.part(x, 1), second = ctx.part(x, 2);
  EXPECT_TRUE(first.equal(x.index_select(0, at::tensor({0, 2}, at::kLong))));
  EXPECT_TRUE(ctx.join({{1, first}, {2, second}}).equal(x));
  EXPECT_EQ(tokens.space(2).within({2, 4}), (TokenRange{1, 2})) << "one of its rows is among these tokens";
}

TEST(PlainContext, BiasedAttentionIsNotScaled) {
  const Tokens tokens = two_samples();
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor q = at::randn({3, 4}), k = at::randn({3, 4}), v = at::randn({3, 4}), bias = at::randn({1, 3, 3});
  EXPECT_TRUE(close(ctx.attention("a", q, k, v, 1, {}, {.bias = &bias}),
                    at::mm(at::softmax(at::mm(q, k.t()) + bias[0], -1), v)));
}

TEST(PlainContext, MissingWeightsNameTheNearest) {
  const Tokens tokens = two_samples();
  const WeightMap weights = {{"blocks.0.ffn.0.weight", at::randn({3, 8})}};
  PlainContext ctx(weights, "blocks.0.", tokens);
  try {
    ctx.linear("ffn.1", at::randn({5, 8}));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("blocks.0.ffn.1.weight: no such weight"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("blocks.0.ffn.0.weight"), std::string::npos) << error.what();
  }
}

TEST(PlainContext, GradientsFlowToWeightsAndTables) {
  const Tokens tokens = two_samples();
  WeightMap weights = {{"t.weight", at::randn({4, 8}).requires_grad_()}, {"m", at::randn({1, 8}).requires_grad_()}};
  PlainContext ctx(weights, "", tokens);
  (ctx.embedding("t", at::tensor({1, 1, 3}, at::kLong)) * ctx.param("m")).sum().backward();
  const Tensor grad = weights.at("t.weight").grad();
  EXPECT_TRUE(close(grad[1], 2 * weights.at("m")[0].detach()));
  EXPECT_TRUE(close(grad[0], at::zeros({8})));
  EXPECT_TRUE(weights.at("m").grad().defined());
}

}  // namespace tessera::net
