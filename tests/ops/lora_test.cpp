// Frozen linears with and without an adapter, in every form of the base, in fp32 and in 16 bits, against plain ATen in
// doubles.
#include "tessera/ops/frozen.h"

#include <gtest/gtest.h>

#include "byte_count.h"
#include "tables.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/reference.h"

namespace tessera::testing {
namespace {

using at::Tensor;
using ops::WeightSite;

constexpr int64_t kTokens = 300, kIn = 96, kOut = 80, kRank = 4;
constexpr double kScale = 0.75;

struct Case {
  const char* name;
  at::ScalarType form = at::kFloat;
  bool adapter = true, gelu = false, dora = false, bias = true;
  double dropout = 0;
  at::ScalarType type = at::kFloat;  ///< of input, result, bias and pair; of a base that has no other form
  at::ScalarType input = type;
  bool leaves_out = false;  ///< ranks of each sample, and some samples wholly
};

constexpr at::ScalarType kBf16 = at::kBFloat16;

const Case kCases[] = {
    {"pair"},
    {"pair_gelu", at::kFloat, true, true},
    {"pair_without_bias", at::kFloat, true, false, false, false},
    {"pair_dropout", at::kFloat, true, false, false, true, 0.25},
    {"pair_dropout_gelu", at::kFloat, true, true, false, true, 0.25},
    {"dora", at::kFloat, true, false, true},
    {"dora_gelu_int8", at::kChar, true, true, true},
    {"pair_bf16", at::kBFloat16},
    {"pair_int8", at::kChar},
    {"pair_fp8_gelu", at::kFloat8_e4m3fn, true, true},
    {"frozen", at::kFloat, false},
    {"frozen_gelu", at::kFloat, false, true},
    {"frozen_int8", at::kChar, false},
    {.name = "pair_leaves_out", .leaves_out = true},
    {.name = "pair_leaves_out_gelu_int8_dropout", .form = at::kChar, .gelu = true, .dropout = 0.25, .leaves_out = true},
    {.name = "half_pair_leaves_out", .type = kBf16, .leaves_out = true},
    {.name = "half_pair", .type = kBf16},
    {.name = "half_pair_fp16", .type = at::kHalf},
    {.name = "half_pair_gelu", .gelu = true, .type = kBf16},
    {.name = "half_pair_without_bias", .bias = false, .type = kBf16},
    {.name = "half_pair_dropout_gelu", .gelu = true, .dropout = 0.25, .type = kBf16},
    {.name = "half_pair_int8", .form = at::kChar, .type = kBf16},
    {.name = "half_pair_fp8_dropout", .form = at::kFloat8_e4m3fn, .dropout = 0.25, .type = at::kHalf},
    {.name = "half_pair_of_an_fp32_input", .type = kBf16, .input = at::kFloat},
    {.name = "half_dora", .dora = true, .type = kBf16},
    {.name = "half_dora_gelu_int8", .form = at::kChar, .gelu = true, .dora = true, .type = kBf16},
    {.name = "half_frozen", .adapter = false, .type = kBf16},
    {.name = "half_frozen_gelu_int8", .form = at::kChar, .adapter = false, .gelu = true, .type = kBf16},
};

/// Of the largest value: what fp32 sums leave, and of 16 bits the one rounding of a result.
double bound_of(at::ScalarType type) { return type == at::kFloat ? 5e-6 : type == at::kHalf ? 1.0 / 2048 : 1.0 / 256; }

Tensor random(at::IntArrayRef shape, int seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

/// A parameter as it is gathered, and its gradient in fp32.
WeightSite trained(const Tensor& value, at::ScalarType type) {
  return {value.to(type), at::full_like(value, NAN), true};
}

/// The operands of a case, and the mask its dropout makes.
struct Fixture {
  explicit Fixture(const Case& c) : what(c) {
    weight = ops::freeze(random({kOut, kIn}, 1) / 10, c.form == at::kFloat ? c.type : c.form);
    bias.value = random({kOut}, 2).to(c.type);
    a = trained(random({kRank, kIn}, 3) / 10, c.type);
    b = trained(random({kOut, kRank}, 4), c.type);
    magnitude = trained(random({kOut}, 5).abs() + 0.5, c.type);
    adapter.a = &a, adapter.b = &b, adapter.scale = kScale;
    if (c.dora) adapter.magnitude = &magnitude;
    adapter.dropout = {.p = c.dropout, .seed = 7, .step = 3, .site = 11, .runs = {{0, 100, 5, 0}, {100, 300, 9, 40}}};
    if (c.leaves_out)
      adapter.left_out = {.p = 0.5,
                          .seed = 7,
                          .step = 3,
                          .site = 12,
                          .runs = {{0, 100, 5, 0}, {100, 200, 6, 40}, {200, 300, 10, 0}},
                          .alike = true,
                          .whole = 0.5};
    anchor = at::zeros({1}).requires_grad_();
  }
  Tensor widened() {
    Tensor w = at::empty({kOut, kIn});
    ops::widen_rows(w, weight, 0);
    return w;
  }
  Tensor run(const Tensor& x, const Tensor* known = nullptr) {
    return ops::frozen_linear(x, weight, what.bias ? &bias : nullptr, what.adapter ? &adapter : nullptr, anchor,
                              what.gelu, what.type, known);
  }
  Tensor ranks() const {
    if (!what.leaves_out) return {};
    Tensor ones = at::ones({kTokens, kRank});
    ops::drop_rows(ones, adapter.left_out, 0);
    return ones.to(at::kDouble);
  }
  Tensor mask() const {
    if (what.dropout == 0) return {};
    Tensor ones = at::ones({kTokens, kIn});
    ops::drop_rows(ones, adapter.dropout, 0);
    return ones.to(at::kDouble);
  }

  Case what;
  WeightSite weight, bias, a, b, magnitude;
  ops::Adapter adapter;
  Tensor anchor;
};

double distance(const Tensor& got, const Tensor& expected) {
  return (got.to(at::kDouble) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

void expect_close(const Tensor& got, const Tensor& expected, const std::string& what, double bound) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_LE(distance(got, expected), bound) << what;
}

class FrozenLinear : public WithEachTable<std::tuple<const ops::Kernels*, Case>> {};

TEST_P(FrozenLinear, ValuesAndGradientsEqualTheReference) {
  const Case& c = std::get<1>(GetParam());
  Fixture f(c);
  const auto leaf = [](const Tensor& t) { return t.to(at::kDouble).detach().clone().requires_grad_(); };
  const Tensor x = random({kTokens, kIn}, 6).to(c.input), dy = random({kTokens, kOut}, 7).to(c.type);
  // LibTorch's operators round every intermediate of 16 bits, those of the adapter's gradients too.
  const double steps = ours || (c.type == at::kFloat && c.input == at::kFloat) ? 1 : 2,
               rounded = steps * bound_of(c.type), of_input = steps * bound_of(c.input),
               exact = steps == 1 ? bound_of(at::kFloat) : std::max(rounded, of_input);
  const Tensor rx = leaf(x), ra = leaf(f.a.value), rb = leaf(f.b.value), rm = leaf(f.magnitude.value),
               w = f.widened().to(at::kDouble), bias = c.bias ? f.bias.value.to(at::kDouble) : Tensor();
  const Tensor expected = c.adapter ? ops::reference::lora_linear(rx, w, bias, ra, rb, kScale, f.mask(),
                                                                  c.dora ? rm : Tensor(), c.gelu, f.ranks())
                                    : ops::reference::linear(c.gelu ? ops::reference::gelu_tanh(rx) : rx, w, bias);
  expected.backward(dy.to(at::kDouble));

  for (const bool ours_alone : {false, true}) {  // an input that only the graph holds may be overwritten
    f.a.fresh = f.b.fresh = f.magnitude.fresh = true;
    const Tensor fx = x.clone().requires_grad_();
    Tensor y = f.run(ours_alone ? fx.clone() : fx);
    expect_close(y.detach(), expected.detach(), "value", rounded);
    std::vector<Tensor> inputs = {fx};
    if (c.adapter) inputs.push_back(f.anchor);
    const auto grads = torch::autograd::grad({y}, inputs, {dy}, true, false, true);
    EXPECT_EQ(y.scalar_type(), c.type);
    EXPECT_EQ(grads[0].scalar_type(), c.input);
    expect_close(grads[0], rx.grad(), "gradient of x", of_input);
    if (!c.adapter) continue;
    expect_close(f.a.grad, ra.grad(), "gradient of A", exact);
    expect_close(f.b.grad, rb.grad(), "gradient of B", exact);
    // made of the result as it was rounded, over a magnitude that makes some of it large
    if (c.dora) expect_close(f.magnitude.grad, rm.grad(), "gradient of the magnitude", 2 * rounded);
    if (ours_alone) continue;
    torch::autograd::grad({y}, inputs, {dy}, true, false, true);
    expect_close(f.a.grad, 2 * ra.grad(), "the second gradient of A is added", exact);
    expect_close(f.b.grad, 2 * rb.grad(), "the second gradient of B is added", exact);
    if (c.dora)
      expect_close(f.magnitude.grad, 2 * rm.grad(), "the second gradient of the magnitude is added", 2 * rounded);
  }
}

TEST_P(FrozenLinear, AKnownResultIsTakenAsItIsAndHasTheSameGradients) {
  const Case& c = std::get<1>(GetParam());
  Fixture f(c);
  const Tensor dy = random({kTokens, kOut}, 7).to(c.type);
  Tensor known;
  std::vector<Tensor> first;
  for (const bool again : {false, true}) {
    f.a.fresh = f.b.fresh = f.magnitude.fresh = true;
    const Tensor x = random({kTokens, kIn}, 6).to(c.input).requires_grad_();
    if (again) {
      const at::NoGradGuard none;
      known = f.run(x);
    }
    const Tensor y = f.run(x, again ? &known : nullptr);
    EXPECT_TRUE(!again || y.const_data_ptr() == known.const_data_ptr()) << "it was computed again";
    std::vector<Tensor> inputs = {x};
    if (c.adapter) inputs.push_back(f.anchor);
    std::vector<Tensor> found = {torch::autograd::grad({y}, inputs, {dy}, false, false, true)[0]};
    if (c.adapter) found.insert(found.end(), {f.a.grad.clone(), f.b.grad.clone()});
    if (c.dora) found.push_back(f.magnitude.grad.clone());
    if (!again) first = found;
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], first[i])) << i;
  }
}

TEST_P(FrozenLinear, MetaTensorsTakeTheBytesOfTheRealOnes) {
  const Case& c = std::get<1>(GetParam());
  const auto measure = [&](at::Device device) {
    Fixture f(c);
    const auto move = [&](WeightSite& s) {
      for (Tensor* t : {&s.value, &s.grad})
        if (t->defined()) *t = t->to(device);
    };
    for (WeightSite* s : {&f.weight, &f.bias, &f.a, &f.b, &f.magnitude}) move(*s);
    f.anchor = at::zeros({1}, device).requires_grad_();
    const auto of = [&](at::ScalarType type) { return at::TensorOptions(type).device(device); };
    const Tensor x = at::zeros({kTokens, kIn}, of(c.input)).requires_grad_(),
                 dy = at::zeros({kTokens, kOut}, of(c.type));
    ByteCount count(device.type());
    const Tensor y = f.run(x);
    const int64_t forward = count.peak(), held = count.live();
    std::vector<Tensor> inputs = {x};
    if (c.adapter) inputs.push_back(f.anchor);
    const auto grads = torch::autograd::grad({y}, inputs, {dy}, false, false, true);
    return std::vector<int64_t>{forward, held, count.peak()};
  };
  const std::vector<int64_t> meta = measure(at::kMeta), cpu = measure(at::kCPU);
  EXPECT_EQ(meta[1], cpu[1]);
  if (ours) EXPECT_EQ(meta, cpu);  // LibTorch's kernels of CPUs take scratch that neither meta nor a GPU takes
}

INSTANTIATE_TEST_SUITE_P(Lora, FrozenLinear, ::testing::Combine(each_table(), ::testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_" + std::get<0>(info.param)->name;
                         });

TEST(FrozenLinearInHalf, IsNearerTheExactResultThanPlainOperatorsInBf16) {
  Fixture f({.name = "", .type = kBf16});
  const Tensor x = random({kTokens, kIn}, 6).to(kBf16);
  const auto reference = [&](at::ScalarType type) {
    const auto as = [type](const Tensor& t) { return t.to(type); };
    return ops::reference::lora_linear(as(x), as(f.weight.value), as(f.bias.value), as(f.a.value), as(f.b.value),
                                       kScale, {}, {}, false);
  };
  const Tensor exact = reference(at::kDouble);
  const double ours = distance(f.run(x), exact), plain = distance(reference(kBf16), exact);
  EXPECT_LE(ours, bound_of(kBf16)) << "one rounding";
  EXPECT_LT(ours, plain);
}

/// Ranks of tp: each has some columns of every row, and lengths are those of whole rows.
TEST(FrozenLinearParts, OfRowsThatRanksShareMagnitudesAreThoseOfTheWhole) {
  constexpr int64_t kLeft = 40;
  const Case c{.name = "", .dora = true, .bias = false};
  Fixture whole(c), left(c), right(c);
  const Tensor x = random({kTokens, kIn}, 6), dy = random({kTokens, kOut}, 7);
  const auto cut = [&](Fixture& f, int64_t first, int64_t count) {
    f.weight.value = whole.weight.value.narrow(1, first, count).contiguous();
    f.a = trained(whole.a.value.narrow(1, first, count).contiguous(), c.type);
    return ops::kernels(x).adapted_squares(f.weight, f.adapter);
  };
  const Tensor of_left = cut(left, 0, kLeft), of_right = cut(right, kLeft, kIn - kLeft);
  const ops::SharedWidth with_right{kIn, [&](const Tensor&squares) { squares.add_(of_right); }},
      with_left{kIn, [&](const Tensor&squares) { squares.add_(of_left); }};
  left.adapter.whole_rows = &with_right, right.adapter.whole_rows = &with_left;
  const auto run = [&](Fixture& f, const Tensor& own) {
    const Tensor input = own.contiguous().requires_grad_(), y = f.run(input);
    return std::pair(y.detach(), torch::autograd::grad({y}, {input, f.anchor}, {dy}, false, false, true)[0]);
  };
  const auto [y, dx] = run(whole, x.clone());
  const auto [y_left, dx_left] = run(left, x.narrow(1, 0, kLeft));
  const auto [y_right, dx_right] = run(right, x.narrow(1, kLeft, kIn - kLeft));
  const double bound = bound_of(at::kFloat);
  expect_close(y_left + y_right, y, "value", bound);
  expect_close(at::cat({dx_left, dx_right}, 1), dx, "gradient of x", bound);
  expect_close(at::cat({left.a.grad, right.a.grad}, 1), whole.a.grad, "gradient of A", bound);
  expect_close(left.b.grad + right.b.grad, whole.b.grad, "gradient of B", bound);
  expect_close(left.magnitude.grad + right.magnitude.grad, whole.magnitude.grad, "gradient of the magnitude", bound);
}

TEST(FrozenLinearGraph, HoldsNothingOfAFrozenSiteAndTheInputAloneOfAnAdaptedOne) {
  Fixture f({"pair"});
  const Tensor x = random({kTokens, kIn}, 6).requires_grad_();
  const auto held_by_graph = [&](bool adapter) {
    f.what.adapter = adapter;
    ByteCount count(at::kCPU);
    const Tensor y = f.run(x.clone());
    return count.live() - static_cast<int64_t>(y.nbytes());
  };
  EXPECT_EQ(held_by_graph(false), 0);
  EXPECT_EQ(held_by_graph(true), static_cast<int64_t>(x.nbytes()));
}

TEST(FrozenLinearGraph, ThereIsNoneWithoutAnAdapterAndAGradientOfTheInput) {
  Fixture f({"frozen", at::kFloat, false});
  EXPECT_FALSE(f.run(random({kTokens, kIn}, 6)).requires_grad());
}

TEST(AdapterDropout, DropsTheSameElementsOfATokenInAnyCutOfTheBatch) {
  Tensor whole = at::ones({300, 64}), parts = at::ones({300, 64});
  const ops::Dropout all{.p = 0.5, .seed = 1, .step = 2, .site = 3, .runs = {{0, 100, 7, 0}, {100, 300, 8, 0}}};
  ops::drop_rows(whole, all, 0);
  // the second sample alone, its first half elsewhere, and columns 32.. of it on another rank
  const ops::Dropout half{.p = 0.5, .seed = 1, .step = 2, .site = 3, .runs = {{0, 120, 8, 80}}};
  Tensor mine = at::ones({120, 64});
  ops::drop_rows(mine, half, 0);
  EXPECT_TRUE(at::equal(mine, whole.narrow(0, 180, 120)));
  ops::Dropout columns = all;
  columns.width = 64, columns.first_column = 32;
  Tensor right = at::ones({300, 32});
  ops::drop_rows(right, columns, 0);
  EXPECT_TRUE(at::equal(right, whole.narrow(1, 32, 32)));
  ops::Dropout next = all;
  next.step = 3;
  ops::drop_rows(parts, next, 0);
  EXPECT_FALSE(at::equal(parts, whole));
}

TEST(AdapterDropout, LeavesOutRanksOfASampleAndWholeSamples) {
  ops::Dropout drop{
      .p = 0.5, .seed = 7, .step = 3, .site = 12, .runs = {{0, 40, 5, 0}, {40, 100, 10, 3}}, .alike = true};
  Tensor ones = at::ones({100, 16});
  ops::drop_rows(ones, drop, 0);
  for (const auto& [begin, end] : {std::pair(0, 40), {40, 100}}) {
    const Tensor own = ones.slice(0, begin, end);
    EXPECT_TRUE(at::equal(own, own[0].expand_as(own))) << "all rows of a sample alike";
    EXPECT_TRUE((own[0].eq(0) | own[0].eq(2)).all().item<bool>());
    EXPECT_GT(own[0].eq(0).sum().item<int64_t>(), 0);
    EXPECT_LT(own[0].eq(0).sum().item<int64_t>(), 16);
  }
  EXPECT_FALSE(at::equal(ones[0], ones[99]));
  Tensor cut = at::ones({30, 16});  // wherever the sample is cut
  drop.runs = {{0, 30, 10, 20}};
  ops::drop_rows(cut, drop, 0);
  EXPECT_TRUE(at::equal(cut[0], ones[99]));
  // Without a share of ranks whole samples go, and the others stay as they are.
  int64_t gone = 0;
  constexpr int64_t kSamples = 2000;
  ops::Dropout whole{.seed = 7, .step = 3, .site = 12, .alike = true, .whole = 0.3};
  for (int64_t s = 0; s < kSamples; ++s) whole.runs.push_back({s, s + 1, static_cast<uint64_t>(s), 0});
  Tensor all = at::ones({kSamples, 4});
  ops::drop_rows(all, whole, 0);
  for (int64_t s = 0; s < kSamples; ++s) gone += all[s].eq(0).all().item<bool>();
  EXPECT_TRUE((all.eq(0) | all.eq(1)).all().item<bool>());
  EXPECT_NEAR(static_cast<double>(gone) / kSamples, 0.3, 0.05);
}

TEST(AdapterDropout, KeepsTheMeanOfWhatItDrops) {
  Tensor x = at::ones({1000, 256});
  ops::drop_rows(x, {.p = 0.1, .runs = {{0, 1000, 0, 0}}}, 0);
  EXPECT_NEAR(x.mean().item<double>(), 1, 0.005);
  EXPECT_NEAR((x == 0).to(at::kFloat).mean().item<double>(), 0.1, 0.005);
}

TEST(FrozenWeight, PanelsOfRowsBeginWithABlockOfScales) {
  for (const int64_t in : {1, 96, 128, 257, 5120}) {
    const WeightSite w = ops::freeze(at::empty({513, in}, at::kMeta), at::kChar);
    EXPECT_EQ(ops::panel_rows(w) * in % 256, 0) << in;
  }
}

TEST(FrozenWeight, EveryFormIsAsNearAsItsBitsAllow) {
  const Tensor source = random({kOut, kIn}, 1);
  for (const auto& [form, bound] :
       {std::pair{at::kFloat, 0.0}, {at::kBFloat16, 0.004}, {at::kChar, 0.004}, {at::kFloat8_e4m3fn, 0.0625}}) {
    Tensor back = at::empty({kOut, kIn});
    ops::widen_rows(back, ops::freeze(source, form), 0);
    EXPECT_LE((back - source).abs().max().item<double>(), bound * source.abs().max().item<double>());
  }
}

}  // namespace
}  // namespace tessera::testing
