// The engine's Context against the plain one at the same sites: results, gradients of the input and of the weights.
#include "tessera/engine/unit_run.h"

#include <gtest/gtest.h>

#include "engine/toy_engine.h"
#include "tessera/base/check.h"

namespace tessera::engine {
namespace {

constexpr int64_t kHeads = 2, kDim = 8;

/// Two samples of 3 and 4 tokens with 2 and 3 rows of context.
net::Tokens two_of_them() {
  net::Tokens tokens;
  tokens.offsets = {0, 3, 7};
  tokens.spaces = {{.offsets = {0, 2, 5}}};
  tokens.rows = ops::RowIndex(at::tensor({0, 0, 0, 1, 1, 1, 1}, at::kInt));
  const Tensor angles = toy::normals({7, kDim / kHeads / 2}, 90);
  tokens.cos = angles.cos(), tokens.sin = angles.sin();
  return tokens;
}

class SiteTest : public ::testing::Test {
 protected:
  SiteTest() : tokens_(two_of_them()) {
    plan::UnitSpec unit;
    unit.name = "u", unit.kind = "block";
    unit.params = {{"u.a.weight", {kDim, kDim}}, {"u.a.bias", {kDim}},    {"u.b.weight", {5, kDim}},
                   {"u.norm.weight", {kDim}},    {"u.norm.bias", {kDim}}, {"u.table", {2, kDim}}};
    plan::Plan plan;
    plan.units.resize(1);
    store_ =
        std::make_unique<Store>(plan::ModelSpec{"sites", {unit}}, std::vector<std::string>{"u."}, plan, 0, at::kCPU);
    fill_shards(*store_, toy::fill);
    for (const auto& param : unit.params) weights_[param.name] = toy::filled(param).requires_grad_();
  }

  using Act = std::function<Tensor(net::Context& ctx, const Tensor& x)>;
  /// Runs `act` on x [7, kDim] in both contexts.
  void expect_same(const Act& act) {
    const Tensor values = toy::normals({7, kDim}, 91);
    const Tensor x = values.clone().requires_grad_(), y = values.clone().requires_grad_();
    net::PlainContext plain(weights_, "u.", tokens_);
    const Tensor expected = act(plain, x);
    const Tensor gradient = toy::normals(expected.sizes().vec(), 92);
    expected.backward(gradient);

    store_->bind(0, -1);
    store_->bind_grad(0, -1, /*fresh=*/true);
    ShardContext ctx(*store_, 0, tokens_);
    const Tensor found = act(ctx, y);
    const Tensor grad = torch::autograd::grad({found}, {y, store_->anchor(0)}, {gradient}, {}, false, true)[0];
    store_->finish_grad(0);
    store_->unbind(0);

    EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(grad, x.grad(), 1e-4, 1e-5));
    store_->bind_grad(0, -1, /*fresh=*/false);
    for (const auto& [name, weight] : weights_) {
      const Tensor wanted = weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
      EXPECT_TRUE(at::allclose(store_->find(0, name.substr(2))->grad, wanted, 1e-4, 1e-5)) << name;
    }
  }

  const net::Tokens tokens_;
  net::WeightMap weights_;
  std::unique_ptr<Store> store_;
};

TEST_F(SiteTest, Linears) {
  expect_same([](net::Context& ctx, const Tensor& x) { return ctx.linear("b", ctx.linear("a", x)); });
}

TEST_F(SiteTest, ALinearBehindGelu) {
  expect_same([](net::Context& ctx, const Tensor& x) { return ctx.linear("a", x, {.act = net::Act::gelu_tanh}); });
}

TEST_F(SiteTest, Norms) {
  expect_same([](net::Context& ctx, const Tensor& x) { return ctx.norm("norm", x, {}); });
}

TEST_F(SiteTest, TheRotaryNorm) {
  expect_same([](net::Context& ctx, const Tensor& x) {
    return ctx.norm("norm", x, {.kind = net::Norm::rms, .eps = 1e-6, .rope = kHeads});
  });
}

TEST_F(SiteTest, ModulationWhoseTableIsAParameter) {
  expect_same([](net::Context& ctx, const Tensor& x) {
    const Tensor table = ctx.param("table");
    return ctx.residual("gate", x, ctx.norm("modulated", x, {.shift = &table, .scale = &table}), &table);
  });
}

TEST_F(SiteTest, SelfAttention) {
  expect_same([](net::Context& ctx, const Tensor& x) {
    return ctx.attention("attn", ctx.linear("a", x), x, ctx.linear("a", x, {.act = net::Act::gelu_tanh}), kHeads);
  });
}

TEST_F(SiteTest, CrossAttention) {
  const Tensor k = toy::normals({5, kDim}, 93), v = toy::normals({5, kDim}, 94);
  expect_same([&](net::Context& ctx, const Tensor& x) { return ctx.attention("cross", x, k, v, kHeads, {.k = 1}); });
}

/// A stream of a joint sequence, whose tokens ranks share: the measurement comes here before anything runs.
TEST_F(SiteTest, APartOfSharedTokensThatMeetsItselfIsRefused) {
  net::Tokens cut = tokens_;
  cut.spaces = {net::Space{.offsets = {0, 3}, .ranges = {{0, 3}}, .begin = 0, .end = 2}};
  ShardContext ctx(*store_, 0, cut);
  const Tensor x = toy::normals({2, kDim}, 95);
  try {
    ctx.attention("stream", x, x, x, kHeads, {.q = 1, .k = 1});
    FAIL() << "it ran";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("attention stream is of a part of the tokens"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::engine
