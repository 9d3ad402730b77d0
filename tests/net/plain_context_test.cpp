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
  tokens.context_offsets = {0, 4, 5};
  tokens.rows = at::tensor({0, 0, 1, 1, 1}, at::kInt);
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
  EXPECT_TRUE(close(ctx.gelu_linear("a", x), ctx.linear("a", at::gelu(x, "tanh"))));
}

TEST(PlainContext, ModulationUsesTheRowOfEachToken) {
  const Tokens tokens = two_samples();
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor x = at::randn({5, 8}), shift = at::randn({2, 8}), scale = at::randn({2, 8});
  const Tensor y = ctx.modulated_norm("norm", x, shift, scale, kEps), z = ctx.gated_residual("gate", x, y, scale);
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
  const Tensor x = at::randn({5, 8}), y = ctx.rms_norm_rope("q", x, 2, kEps), normal = ctx.rms_norm("q", x, kEps);
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
  const Tensor self = ctx.self_attention("a", q, k, v, 2);
  const auto part = [](const Tensor& x, int64_t a, int64_t b) {
    return x.slice(0, a, b).reshape({b - a, 2, 4}).transpose(0, 1).unsqueeze(0);
  };
  const Tensor expected = at::scaled_dot_product_attention(part(q, 2, 5), part(k, 2, 5), part(v, 2, 5));
  EXPECT_TRUE(close(self.slice(0, 2, 5), expected[0].transpose(0, 1).reshape({3, 8})));
  const Tensor cross = ctx.cross_attention("a", q, k, v, 2);
  EXPECT_TRUE(close(cross.slice(0, 2, 5), v.slice(0, 4, 5).expand({3, 8})))
      << "the second sample has a single context row";
}

TEST(PlainContext, BiasedAttentionIsNotScaled) {
  const Tokens tokens = two_samples();
  const WeightMap none;
  PlainContext ctx(none, "", tokens);
  const Tensor q = at::randn({3, 4}), k = at::randn({3, 4}), v = at::randn({3, 4}), bias = at::randn({1, 3, 3});
  EXPECT_TRUE(
      close(ctx.biased_attention("a", q, k, v, 1, bias), at::mm(at::softmax(at::mm(q, k.t()) + bias[0], -1), v)));
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
