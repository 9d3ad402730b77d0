// Frozen linears with the adapters that change a weight (LoHa, LoKr), in fp32 and 16 bits, against plain ATen in doubles.
#include <gtest/gtest.h>

#include "byte_count.h"
#include "tables.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/reference.h"
#include "tessera/ops/weight.h"

namespace tessera::testing::weight_change {
namespace {

using at::Tensor;
using ops::WeightSite;
using Kind = ops::Adapter::Kind;

constexpr double kScale = 0.75;

/// Sizes [rows, columns] of the two matrices, and their ranks; 0: whole.
struct Case {
  const char* name;
  Kind kind;
  std::array<int64_t, 2> first, second;
  int64_t first_rank = 0, second_rank = 0, tokens = 300;
  bool gelu = false;
  double dropout = 0;
  at::ScalarType type = at::kFloat, form = at::kFloat;
  bool leaves_out = false;
  bool dora = false;
  int64_t out() const { return kind == Kind::kronecker ? first[0] * second[0] : first[0]; }
  int64_t in() const { return kind == Kind::kronecker ? first[1] * second[1] : first[1]; }
};

const Case kCases[] = {
    {"kronecker", Kind::kronecker, {4, 6}, {20, 16}},
    {"kronecker_low", Kind::kronecker, {4, 6}, {20, 16}, 0, 3},
    {"kronecker_both_low_many_rows", Kind::kronecker, {8, 10}, {10, 7}, 2, 2, 1100},
    {"kronecker_first_larger", Kind::kronecker, {24, 5}, {3, 4}},
    {"kronecker_of_one", Kind::kronecker, {1, 1}, {7, 5}, 0, 1, 3},
    {"kronecker_gelu", Kind::kronecker, {4, 6}, {20, 16}, 0, 3, 300, true},
    {"kronecker_dropout_gelu", Kind::kronecker, {4, 6}, {20, 16}, 2, 3, 300, true, 0.25},
    {"kronecker_bf16", Kind::kronecker, {4, 6}, {20, 16}, 0, 3, 600, false, 0, at::kBFloat16},
    {"kronecker_dropout_gelu_bf16_int8",
     Kind::kronecker,
     {4, 6},
     {20, 16},
     0,
     3,
     300,
     true,
     0.25,
     at::kBFloat16,
     at::kChar},
    {.name = "kronecker_leaves_out",
     .kind = Kind::kronecker,
     .first = {4, 6},
     .second = {20, 16},
     .gelu = true,
     .dropout = 0.25,
     .leaves_out = true},
    {.name = "product_leaves_out",
     .kind = Kind::elementwise,
     .first = {80, 96},
     .second = {80, 96},
     .first_rank = 4,
     .second_rank = 4,
     .leaves_out = true},
    {"product", Kind::elementwise, {80, 96}, {80, 96}, 4, 4},
    {"product_many_rows", Kind::elementwise, {1030, 33}, {1030, 33}, 2, 3, 700},
    {"product_gelu", Kind::elementwise, {80, 96}, {80, 96}, 4, 4, 300, true},
    {"product_dropout", Kind::elementwise, {80, 96}, {80, 96}, 4, 4, 300, false, 0.25},
    {"product_gelu_fp16_fp8", Kind::elementwise, {80, 96}, {80, 96}, 4, 4, 300, true, 0, at::kHalf, at::kFloat8_e4m3fn},
    {.name = "kronecker_dora", .kind = Kind::kronecker, .first = {4, 6}, .second = {20, 16}, .dora = true},
    {.name = "kronecker_dora_both_low_int8_many_rows",
     .kind = Kind::kronecker,
     .first = {9, 10},
     .second = {10, 7},
     .first_rank = 2,
     .second_rank = 2,
     .tokens = 1100,
     .form = at::kChar,
     .dora = true},
    {.name = "kronecker_dora_gelu_bf16",
     .kind = Kind::kronecker,
     .first = {4, 6},
     .second = {20, 16},
     .second_rank = 3,
     .gelu = true,
     .type = at::kBFloat16,
     .dora = true},
    {.name = "product_dora_gelu",
     .kind = Kind::elementwise,
     .first = {1030, 33},
     .second = {1030, 33},
     .first_rank = 2,
     .second_rank = 3,
     .tokens = 700,
     .gelu = true,
     .dora = true},
    {.name = "product_dora_fp16_fp8",
     .kind = Kind::elementwise,
     .first = {80, 96},
     .second = {80, 96},
     .first_rank = 4,
     .second_rank = 4,
     .type = at::kHalf,
     .form = at::kFloat8_e4m3fn,
     .dora = true},
};

Tensor random(at::IntArrayRef shape, int seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

/// A matrix of an adapter, whole or two factors.
struct Half {
  Half(const Case& c, std::array<int64_t, 2> size, int64_t rank, int seed) {
    const auto add = [&](at::IntArrayRef shape, int more) {
      const Tensor value = random(shape, seed + more) / 3;
      sites.push_back({value.to(c.type), at::full_like(value, NAN), true});
    };
    if (rank == 0)
      add({size[0], size[1]}, 0);
    else
      add({size[0], rank}, 0), add({rank, size[1]}, 1);
  }
  ops::Adapter::Half of() {
    if (sites.size() == 1) return {.whole = &sites[0]};
    return {.a = &sites[0], .b = &sites[1]};
  }
  std::vector<Tensor> doubles() const {
    std::vector<Tensor> all;
    for (const WeightSite& site : sites) all.push_back(site.value.to(at::kDouble).detach().clone().requires_grad_());
    return all;
  }
  static Tensor matrix(const std::vector<Tensor>& factors) {
    return factors.size() == 1 ? factors[0] : at::matmul(factors[0], factors[1]);
  }
  std::vector<WeightSite> sites;
};

struct Fixture {
  explicit Fixture(const Case& c) : what(c), first(c, c.first, c.first_rank, 3), second(c, c.second, c.second_rank, 5) {
    weight = ops::freeze(random({c.out(), c.in()}, 1) / 10, c.form == at::kFloat ? c.type : c.form);
    bias.value = random({c.out()}, 2).to(c.type);
    adapter.kind = c.kind, adapter.first = first.of(), adapter.second = second.of(), adapter.scale = kScale;
    adapter.dropout = {
        .p = c.dropout, .seed = 7, .step = 3, .site = 11, .runs = {{0, 100, 5, 0}, {100, c.tokens, 9, 40}}};
    if (c.leaves_out)
      for (int64_t row = 0; row < c.tokens; row += 20) {  // some samples of twenty rows
        adapter.left_out.seed = 7, adapter.left_out.alike = true, adapter.left_out.whole = 0.5;
        adapter.left_out.runs.push_back({row, std::min(row + 20, c.tokens), static_cast<uint64_t>(row), 0});
      }
    const Tensor m = random({c.out()}, 8).abs() + 0.5;
    magnitude = {m.to(c.type), at::full_like(m, NAN), true};
    if (c.dora) adapter.magnitude = &magnitude;
    anchor = at::zeros({1}).requires_grad_();
  }
  Tensor run(const Tensor& x) { return ops::frozen_linear(x, weight, &bias, &adapter, anchor, what.gelu, what.type); }

  Case what;
  Half first, second;
  WeightSite weight, bias, magnitude;
  ops::Adapter adapter;
  Tensor anchor;
};

void expect_close(const Tensor& got, const Tensor& expected, const std::string& what, double bound) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(), bound * expected.abs().max().item<double>())
      << what;
}

class WeightChange : public WithEachTable<std::tuple<const ops::Kernels*, Case>> {};

TEST_P(WeightChange, ValuesAndGradientsEqualTheReference) {
  const Case& c = std::get<1>(GetParam());
  Fixture f(c);
  const Tensor x = random({c.tokens, c.in()}, 6).to(c.type), dy = random({c.tokens, c.out()}, 7).to(c.type);
  const Tensor rx = x.to(at::kDouble).detach().clone().requires_grad_();
  Tensor w = at::empty({c.out(), c.in()}), mask = at::ones({c.tokens, c.in()});
  ops::widen_rows(w, f.weight, 0);
  if (c.dropout > 0) ops::drop_rows(mask, f.adapter.dropout, 0);
  if (c.leaves_out) {
    ops::drop_rows(mask, f.adapter.left_out, 0);
    EXPECT_GT(mask.sum(1).eq(0).sum().item<int64_t>(), 20);
  }
  const std::vector<Tensor> first = f.first.doubles(), second = f.second.doubles();
  const Tensor z = c.gelu ? ops::reference::gelu_tanh(rx) : rx;
  const Tensor change =
      ops::reference::weight_change(Half::matrix(first), Half::matrix(second), c.kind == Kind::kronecker);
  const Tensor bias = f.bias.value.to(at::kDouble), adapted = w.to(at::kDouble) + kScale * change,
               m = f.magnitude.value.to(at::kDouble).detach().clone().requires_grad_();
  const Tensor expected = c.dora ? at::linear(z, adapted) * (m / adapted.detach().norm(2, 1)) + bias
                                 : ops::reference::linear(z, w.to(at::kDouble), bias) +
                                       kScale * at::linear(mask.to(at::kDouble) * z, change);
  expected.backward(dy.to(at::kDouble));

  // of 16 bits: the frozen product and the sum are rounded, and LibTorch's operators round what is between
  const double rounded = c.type == at::kFloat  ? 5e-6
                         : c.type == at::kHalf ? 1.0 / 512
                                               : 1.0 / 64,
               exact = c.type == at::kFloat ? 5e-6
                       : c.gelu || c.dora   ? rounded
                                            : 2e-5;
  const Tensor fx = x.clone().requires_grad_();
  const Tensor y = f.run(fx);
  EXPECT_EQ(y.scalar_type(), c.type);
  expect_close(y.detach(), expected.detach(), "value", rounded);
  for (const double times : {1.0, 2.0}) {  // a second gradient is added
    const auto grads = torch::autograd::grad({y}, {fx, f.anchor}, {dy}, true, false, true);
    EXPECT_EQ(grads[0].scalar_type(), c.type);
    expect_close(grads[0], rx.grad(), "gradient of x", rounded);
    for (const auto& [half, factors] : {std::pair{&f.first, &first}, {&f.second, &second}})
      for (size_t i = 0; i < half->sites.size(); ++i)
        expect_close(half->sites[i].grad, times * (*factors)[i].grad(), "gradient of a factor", exact);
    if (c.dora) expect_close(f.magnitude.grad, times * m.grad(), "gradient of the magnitude", 2 * rounded);
  }
  EXPECT_TRUE(at::equal(fx.detach(), x)) << "an input that others hold is as it was";
}

TEST_P(WeightChange, MetaTensorsTakeTheBytesOfTheRealOnes) {
  const Case& c = std::get<1>(GetParam());
  const auto measure = [&](at::Device device) {
    Fixture f(c);
    const auto move = [&](WeightSite& s) {
      for (Tensor* t : {&s.value, &s.grad})
        if (t->defined()) *t = t->to(device);
    };
    move(f.weight), move(f.bias), move(f.magnitude);
    for (Half* half : {&f.first, &f.second})
      for (WeightSite& site : half->sites) move(site);
    f.anchor = at::zeros({1}, device).requires_grad_();
    if (device.is_meta()) f.adapter.dropout.runs.clear(), f.adapter.left_out.runs.clear();  // as when a plan is made
    const auto of = at::TensorOptions(c.type).device(device);
    const Tensor x = at::zeros({c.tokens, c.in()}, of).requires_grad_(), dy = at::zeros({c.tokens, c.out()}, of);
    ByteCount count(device.type());
    const Tensor y = f.run(x);
    const int64_t forward = count.peak(), held = count.live();
    const auto grads = torch::autograd::grad({y}, {x, f.anchor}, {dy}, false, false, true);
    return std::vector<int64_t>{forward, held, count.peak()};
  };
  const std::vector<int64_t> meta = measure(at::kMeta), cpu = measure(at::kCPU);
  EXPECT_EQ(meta[1], cpu[1]);
  if (ours) EXPECT_EQ(meta, cpu);
}

INSTANTIATE_TEST_SUITE_P(, WeightChange, ::testing::Combine(each_table(), ::testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_" + std::get<0>(info.param)->name;
                         });

/// Ranks of tp: each has blocks of rows or of columns, and its part of the sum.
TEST(WeightChangeParts, OfAKroneckerProductAreThoseOfTheRowsAndColumnsOfItsFirstMatrix) {
  Fixture f({"", Kind::kronecker, {4, 6}, {20, 16}, 0, 3});
  const Tensor x = random({300, 96}, 6);
  const at::NoGradGuard none;
  const Tensor whole = f.run(x), w = f.weight.value, p = f.first.sites[0].value;
  f.bias.value = at::zeros({80});
  const auto part = [&](const Tensor& of_p, const Tensor& of_w, const Tensor& of_x) {
    Fixture own({"", Kind::kronecker, {of_p.size(0), of_p.size(1)}, {20, 16}, 0, 3});
    own.first.sites[0].value = of_p.contiguous();
    own.weight.value = of_w.contiguous(), own.bias.value = at::zeros({of_w.size(0)});
    return own.run(of_x.contiguous());
  };
  const Tensor rows =
      at::cat({part(p.narrow(0, 0, 2), w.narrow(0, 0, 40), x), part(p.narrow(0, 2, 2), w.narrow(0, 40, 40), x)}, 1);
  const Tensor sum = part(p.narrow(1, 0, 3), w.narrow(1, 0, 48), x.narrow(1, 0, 48)) +
                     part(p.narrow(1, 3, 3), w.narrow(1, 48, 48), x.narrow(1, 48, 48));
  const Tensor expected = whole - random({80}, 2);
  EXPECT_LT((rows - expected).abs().max().item<double>(), 1e-5);
  EXPECT_LT((sum - expected).abs().max().item<double>(), 1e-5);
}

TEST(WeightChangeGraph, HoldsTheInputAloneAndFrozenFactorsHaveNoGradient) {
  Fixture f({"", Kind::kronecker, {4, 6}, {20, 16}, 0, 3});
  const Tensor x = random({300, 96}, 6).requires_grad_();
  f.first.sites[0].grad = Tensor();
  ByteCount count(at::kCPU);
  const Tensor y = f.run(x.clone());
  EXPECT_EQ(count.live() - static_cast<int64_t>(y.nbytes()), static_cast<int64_t>(x.nbytes()));
  torch::autograd::grad({y}, {f.anchor}, {at::ones_like(y)}, false, false, true);
  EXPECT_FALSE(f.first.sites[0].grad.defined());
  EXPECT_FALSE(f.second.sites[0].grad.isnan().any().item<bool>());
}

TEST(WeightChangeSizes, ThatMakeNoChangeOfTheWeightAreABug) {
  Fixture f({"", Kind::kronecker, {4, 6}, {20, 16}});
  f.first.sites[0].value = at::zeros({4, 5});
  EXPECT_THROW(f.run(random({3, 96}, 6)), InternalError);
  Fixture product({"", Kind::elementwise, {80, 96}, {80, 96}, 2, 2});
  product.second.sites[1].value = at::zeros({2, 95});
  EXPECT_THROW(product.run(random({3, 96}, 6)), InternalError);
}

}  // namespace
}  // namespace tessera::testing::weight_change
