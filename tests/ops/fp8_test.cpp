#include "tessera/ops/eight_bit.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "byte_count.h"
#include "tables.h"
#include "tessera/base/random.h"
#include "tessera/ops/frozen.h"
#include "tessera/ops/fused.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/reference.h"
#include "tessera/ops/session.h"
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

// Products in 8 bits ([Note: products in 8 bits] in ops/kernels.h) of every table: codes and scales of lines, results and gradients
// beside those of fp64 on the same codes, what stays in 16 bits, adapters beside a base, and bytes on meta.
namespace tessera::ops::in_eight_bits {
namespace {

using testing::each_table;
using testing::table_name;
using testing::WithEachTable;

constexpr int64_t kTokens = 37, kIn = 50, kOut = 24;  // none of which is a multiple of 16
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// Rows and columns that differ in size by a thousand, with a zero row.
Tensor drawn(at::IntArrayRef shape, uint64_t which, at::ScalarType type) {
  Tensor x = at::empty(shape);
  RandomKey(100 + which, Purpose::test).normal(out_data(x), 0, static_cast<size_t>(x.numel()));
  for (int64_t r = 0; r < shape[0]; ++r) x[r].mul_(std::pow(10.0, static_cast<double>(r % 7) / 2 - 2));
  if (shape[0] > 5) x[5].zero_();
  return x.to(type).contiguous();
}

/// What quantise_fp8() makes of the rows, or columns, of x, whole and without scales in fp64.
struct Expected {
  Expected(const Tensor& x, DType format, bool turned) {
    const Tensor lines = (turned ? x.t() : x).to(at::kFloat).contiguous();
    codes = at::empty(lines.sizes(), at::kByte), scales = at::empty({lines.size(0)});
    quantise_fp8(codes.mutable_data_ptr<uint8_t>(), out_data(scales), data(lines),
                 {lines.size(0), lines.size(1), 1, lines.size(1), format});
    Tensor floats = at::empty(lines.sizes());
    from_fp8(out_data(floats), codes.const_data_ptr<uint8_t>(), codes.numel(), format);
    values = floats.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(1);
  }
  Tensor codes, scales, values;
};
Tensor e4m3(const Tensor& x, bool turned = false) { return Expected(x, DType::f8_e4m3, turned).values; }
Tensor e5m2(const Tensor& x, bool turned = false) { return Expected(x, DType::f8_e5m2, turned).values; }

void expect_close(const Tensor& got, const Tensor& expected, double bound, const char* what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double most = expected.abs().max().item<double>();
  EXPECT_GT(most, 0) << what;
  EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>() / most, bound) << what;
}
constexpr double kRounded = 1.0 / 256, kSummed = 2e-6;

using Fp8Products = WithEachTable<>;

TEST_P(Fp8Products, LinesHaveTheCodesAndScalesOfRowsAndZerosBehind) {
  for (const at::ScalarType type : kTypes)
    for (const auto& [at_format, format] :
         {std::pair(at::kFloat8_e4m3fn, DType::f8_e4m3), {at::kFloat8_e5m2, DType::f8_e5m2}})
      for (const bool turned : {false, true}) {
        const Tensor x = drawn({kTokens, kIn}, 1, type);
        const Expected expected(x, format, turned);
        const Fp8Lines lines = table.fp8_lines(x, at_format, turned, false);
        const int64_t length = turned ? kTokens : kIn;
        ASSERT_EQ(lines.codes.size(1), turned ? 48 : 64);
        const Tensor codes = lines.codes.view(at::kByte);
        EXPECT_TRUE(codes.narrow(1, 0, length).equal(expected.codes)) << type << turned;
        EXPECT_TRUE(codes.narrow(1, length, codes.size(1) - length).eq(0).all().item<bool>()) << type << turned;
        EXPECT_TRUE(lines.scales.equal(expected.scales)) << type << turned;
      }
}

TEST_P(Fp8Products, NaNIsACodeOfItsOwnAndNoScale) {
  Tensor x = drawn({3, 20}, 2, at::kBFloat16);
  x[1][7] = 0;
  const Tensor clean = table.fp8_lines(x, at::kFloat8_e4m3fn, false, false).scales;
  x[1][7] = NAN;
  const Fp8Lines lines = table.fp8_lines(x, at::kFloat8_e4m3fn, false, false);
  EXPECT_TRUE(lines.scales.equal(clean));
  const Tensor y = table.fp8_product(lines, lines, {}, at::kBFloat16);
  EXPECT_TRUE(y[1].isnan().all().item<bool>()) << "what is not finite is not hidden";
  EXPECT_FALSE(y[0][0].isnan().item<bool>());
}

TEST_P(Fp8Products, NoTokensMakeNoResultAndAnEmptySum) {
  const Tensor none = at::empty({0, kIn}, at::kBFloat16), w = drawn({kOut, kIn}, 3, at::kBFloat16);
  EXPECT_EQ(fp8_linear(none, w, {}, false, at::kBFloat16).sizes(), at::IntArrayRef({0, kOut}));
  Tensor dw = at::full({kOut, kIn}, 3.0f);
  fp8_weight_gradient(dw, at::empty({0, kOut}, at::kBFloat16), none, false, /*add=*/true);
  EXPECT_TRUE(dw.eq(3).all().item<bool>());
  fp8_weight_gradient(dw, at::empty({0, kOut}, at::kBFloat16), none, false, /*add=*/false);
  EXPECT_TRUE(dw.eq(0).all().item<bool>());
}

/// y, dx, dW and db of a linear, or of one behind a GELU.
struct Results {
  Tensor y, dx, dw, db;
};

struct Operands {
  Tensor x = drawn({kTokens, kIn}, 4, at::kBFloat16), w = drawn({kOut, kIn}, 5, at::kBFloat16),
         bias = drawn({kOut}, 6, at::kBFloat16), dy = drawn({kTokens, kOut}, 7, at::kBFloat16);
};

Results run(const Operands& o, bool gelu, bool fp8, const Tensor& before = {}) {
  WeightSite weight{o.w, before.defined() ? before.clone() : at::full({kOut, kIn}, NAN), !before.defined()},
      bias{o.bias, at::full({kOut}, NAN), true};
  const Tensor x = o.x.clone().requires_grad_(), anchor = at::zeros({1}).requires_grad_();
  Tensor y;
  {
    Fp8Inputs inputs;
    const Fp8Scope scope(fp8 ? &inputs : nullptr);
    y = gelu ? gelu_linear(x, weight, &bias, anchor, at::kBFloat16) : linear(x, weight, &bias, anchor, at::kBFloat16);
  }  // the backward knows how its forward was
  const auto grads = torch::autograd::grad({y}, {x, anchor}, {o.dy}, true, false, true);
  return {y.detach(), grads[0], weight.grad, bias.grad};
}

TEST_P(Fp8Products, ResultsAndGradientsAreThoseOfTheCodes) {
  const Operands o;
  const Results got = run(o, false, true);
  expect_close(got.y, e4m3(o.x).matmul(e4m3(o.w).t()) + o.bias.to(at::kDouble), kRounded, "y");
  expect_close(got.dx, e5m2(o.dy).matmul(e4m3(o.w, true).t()), kRounded, "dx");
  const Tensor dw = e5m2(o.dy, true).matmul(e4m3(o.x, true).t());
  expect_close(got.dw, dw, kSummed, "dW");
  expect_close(got.db, o.dy.to(at::kDouble).sum(0), 1e-5, "db");
  const Tensor before = drawn({kOut, kIn}, 8, at::kFloat);
  expect_close(run(o, false, true, before).dw, before.to(at::kDouble) + dw, kSummed, "dW added");
}

TEST_P(Fp8Products, GeluIsQuantisedBehindIt) {
  const Operands o;
  const Results got = run(o, true, true);
  const Tensor z = table.gelu_tanh(o.x);
  expect_close(got.y, e4m3(z).matmul(e4m3(o.w).t()) + o.bias.to(at::kDouble), kRounded, "y");
  expect_close(got.dw, e5m2(o.dy, true).matmul(e4m3(z, true).t()), kSummed, "dW");
  const Tensor x = o.x.to(at::kDouble).requires_grad_();
  reference::gelu_tanh(x).backward(e5m2(o.dy).matmul(e4m3(o.w, true).t()));
  expect_close(got.dx, x.grad(), 3 * kRounded, "dx");
}

TEST_P(Fp8Products, WhatIsNoStreamOf16BitsStaysAsItIs) {
  const Operands o;
  const Results plain = run(o, false, false), eight = run(o, false, true);
  EXPECT_FALSE(plain.y.equal(eight.y)) << "nothing was quantised";
  EXPECT_FALSE(plain.dw.equal(eight.dw));
  const Tensor anchor = at::zeros({1});
  WeightSite weight{o.w};
  const auto with = [&](const Tensor& x, at::ScalarType type, bool fp8) {
    Fp8Inputs inputs;
    const Fp8Scope scope(fp8 ? &inputs : nullptr);
    return linear(x, weight, nullptr, anchor, type);
  };
  for (const auto& [x, type] : {std::pair(o.x.to(at::kFloat), at::kBFloat16), {o.x, at::kFloat}})
    EXPECT_TRUE(with(x, type, true).equal(with(x, type, false)));
}

TEST_P(Fp8Products, DeferredGradientsAreThoseOfOneBackward) {
  const Operands o;
  const Results at_once = run(o, false, true);
  WeightSite weight{o.w, {}, true};
  const Tensor x = o.x.clone().requires_grad_(), anchor = at::zeros({1}).requires_grad_();
  DeferredGradients deferred({&weight});
  {
    Fp8Inputs inputs;
    const Fp8Scope scope(&inputs);
    const Tensor y = linear(x, weight, nullptr, anchor, at::kBFloat16);
    const DeferredGradients::Scope open(deferred);
    const auto grads = torch::autograd::grad({y}, {x, anchor}, {o.dy}, true, false, true);
    EXPECT_TRUE(grads[0].equal(at_once.dx));
  }
  weight.grad = at::full({kOut, kIn}, NAN);
  deferred.run();
  EXPECT_TRUE(weight.grad.equal(at_once.dw));
}

TEST_P(Fp8Products, TwoReadersOfAnInputAddTheirGradients) {
  const Operands o;
  const Results one = run(o, false, true);
  WeightSite weight{o.w};
  const Tensor x = o.x.clone().requires_grad_(), anchor = at::zeros({1}).requires_grad_();
  Fp8Inputs inputs;
  const Fp8Scope scope(&inputs);
  Tensor passed;
  const Tensor first = linear(x, weight, nullptr, anchor, at::kBFloat16, When::at_once, &passed);
  ASSERT_TRUE(passed.defined());
  const Tensor second = linear(passed, weight, nullptr, anchor, at::kBFloat16);
  const auto grads = torch::autograd::grad({first, second}, {x}, {o.dy, o.dy});
  expect_close(grads[0], one.dx.to(at::kDouble) * 2, kRounded, "dx");
}

/// What linears of one input make, and how many values of e4m3 and of e5m2 they quantise.
struct OfOneInput {
  std::vector<Tensor> made;
  double values[2];
};

OfOneInput run_three(const Operands& o, bool share) {
  std::array<double, kFp8Counts> counts = {};
  OfOneInput all;
  {
    const Fp8CountScope counting(counts.data());
    const Tensor x = o.x.clone().requires_grad_(), anchor = at::zeros({1}).requires_grad_();
    std::array<Fp8Inputs, 3> inputs;
    std::array<WeightSite, 3> weights;
    std::vector<Tensor> y;
    for (size_t i = 0; i < 3; ++i) {
      weights[i] = {drawn({kOut, kIn}, 20 + i, at::kBFloat16), at::full({kOut, kIn}, NAN), true};
      const Fp8Scope scope(&inputs[share ? 0 : i]);
      y.push_back(linear(x, weights[i], nullptr, anchor, at::kBFloat16));
      all.made.push_back(y.back().detach());
    }
    all.made.push_back(torch::autograd::grad(y, {x}, {o.dy, o.dy, o.dy})[0]);
    for (const WeightSite& weight : weights) all.made.push_back(weight.grad);
  }
  all.values[0] = counts[0], all.values[1] = counts[kFp8Counts / 2];
  return all;
}

TEST_P(Fp8Products, LinearsOfOneInputMakeItsCodesOnce) {
  const Operands o;
  const OfOneInput shared = run_three(o, true), alone = run_three(o, false);
  for (size_t i = 0; i < alone.made.size(); ++i) EXPECT_TRUE(shared.made[i].equal(alone.made[i])) << i;
  constexpr int64_t kX = kTokens * kIn, kW = kOut * kIn, kY = kTokens * kOut;
  EXPECT_EQ(shared.values[0], 2 * kX + 6 * kW) << "rows forward, columns backward";
  EXPECT_EQ(alone.values[0], 6 * kX + 6 * kW);
  EXPECT_EQ(shared.values[1], 6 * kY);
  EXPECT_EQ(alone.values[1], 6 * kY);
}

TEST_P(Fp8Products, CodesAreSharedWhileTheInputIsWhatItWas) {
  Tensor x = drawn({kTokens, kIn}, 4, at::kBFloat16);
  Fp8Inputs inputs;
  const void* first = inputs.rows(x).codes.const_data_ptr();
  EXPECT_EQ(inputs.rows(x.detach()).codes.const_data_ptr(), first) << "as a linear passes it on";
  x.mul_(-1);
  EXPECT_TRUE(inputs.rows(x).codes.view(at::kByte).equal(
      table.fp8_lines(x, at::kFloat8_e4m3fn, false, false).codes.view(at::kByte)));
  const Tensor part = x.narrow(0, 3, 8);
  EXPECT_EQ(inputs.rows(part).codes.size(0), 8);
  x = drawn({kTokens, kIn}, 5, at::kBFloat16);  // perhaps where the one before was
  EXPECT_TRUE(inputs.rows(x).scales.equal(table.fp8_lines(x, at::kFloat8_e4m3fn, false, false).scales));
}

TEST_P(Fp8Products, TheLastReaderOfColumnsFreesThem) {
  const Operands o;
  Fp8Inputs inputs;
  const auto columns = inputs.readers(o.x);
  EXPECT_EQ(inputs.readers(o.x), columns);
  Tensor first = at::full({kOut, kIn}, NAN), second = at::full({kOut, kIn}, NAN);
  fp8_weight_gradient(first, o.dy, o.x, false, /*add=*/false, columns.get());
  EXPECT_TRUE(columns->made.codes.defined());
  fp8_weight_gradient(second, o.dy, o.x, false, /*add=*/false, columns.get());
  EXPECT_FALSE(columns->made.codes.defined());
  EXPECT_TRUE(first.equal(second));
}

/// Beside a value of 1 all below 2^-10 / 448 is zero in e4m3. Nothing is clipped where scales are of the values themselves.
TEST_P(Fp8Products, WhatQuantisingLosesIsCounted) {
  for (const bool turned : {false, true})
    for (const at::ScalarType format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      Tensor x = at::full({40, 40}, 1e-7f, at::kBFloat16);
      x.fill_diagonal_(1);
      x[3] = 0, x.select(1, 3).zero_();
      std::array<double, kFp8Counts> counts = {};
      counts.fill(5);
      {
        const Fp8CountScope counting(counts.data());
        table.fp8_lines(x, format, turned, false);
      }
      const bool e5m2 = format == at::kFloat8_e5m2;
      const size_t own = e5m2 ? 3 : 0;
      EXPECT_EQ(counts[own], 5 + 1600);
      EXPECT_EQ(counts[own + 1], 5 + (e5m2 ? 0 : 39 * 38)) << "zeros that were none";
      EXPECT_EQ(counts[own + 2], 5);
      for (size_t other = 3 - own; other < 6 - own; ++other) EXPECT_EQ(counts[other], 5);
      table.fp8_lines(x, format, turned, false);
      EXPECT_EQ(counts[own], 5 + 1600) << "nobody asks";
    }
}

/// A pair on a frozen base of any form, which is quantised from what that form holds.
TEST_P(Fp8Products, AnAdapterIsBesideTheBasesProduct) {
  constexpr int64_t kRank = 4;
  const Operands o;
  const Tensor a0 = drawn({kRank, kIn}, 9, at::kBFloat16), b0 = drawn({kOut, kRank}, 10, at::kBFloat16);
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  for (const at::ScalarType form : {at::kBFloat16, at::kChar, at::kFloat8_e4m3fn}) {
    WeightSite weight = freeze(o.w.to(at::kFloat), form), bias{o.bias};
    bias.frozen = true;
    const Tensor base = table.frozen_matrix(weight, at::kBFloat16);
    WeightSite a{a0, at::full({kRank, kIn}, NAN), true}, b{b0, at::full({kOut, kRank}, NAN), true};
    const Adapter pair{.a = &a, .b = &b, .scale = 0.5};
    const Tensor x = o.x.clone().requires_grad_(), anchor = at::zeros({1}).requires_grad_();
    Tensor y;
    {
      Fp8Inputs inputs;
      const Fp8Scope scope(&inputs);
      y = frozen_linear(x, weight, &bias, &pair, anchor, false, at::kBFloat16);
    }
    const Tensor h = 0.5 * wide(o.x).matmul(wide(a0).t()), e = 0.5 * wide(o.dy).matmul(wide(b0));
    const char* name = form == at::kChar ? "int8" : form == at::kBFloat16 ? "bf16" : "fp8";
    expect_close(y.detach(), e4m3(o.x).matmul(e4m3(base).t()) + wide(o.bias) + h.matmul(wide(b0).t()), 3 * kRounded,
                 name);
    const auto grads = torch::autograd::grad({y}, {x, anchor}, {o.dy}, true, false, true);
    expect_close(grads[0], e5m2(o.dy).matmul(e4m3(base, true).t()) + e.matmul(wide(a0)), 3 * kRounded, name);
    expect_close(a.grad, e.t().matmul(wide(o.x)), 2 * kRounded, name);
    expect_close(b.grad, wide(o.dy).t().matmul(h), 2 * kRounded, name);
  }
}

/// What shards of a weight quantise, in ranges that cut lines anywhere, and its products: those of the whole weight.
TEST_P(Fp8Products, OfCodesThatShardsMadeAreThoseOfTheWeight) {
  for (const auto& [out, in] : {std::array<int64_t, 2>{48, 70}, {30, 64}, {3, 200}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Tensor w = at::randn({out, in}) * at::exp(at::randn({out, 1}) * 2) * at::exp(at::randn({1, in}) * 2);
      w[2].zero_();
      const Tensor values = at::empty({out, in}, at::kBFloat16), shards = w.to(type).contiguous();
      if (type == at::kFloat)
        shards[1][3] = std::nanf(""), high_half(values, shards);
      else  // LibTorch's cast would make it negative, and only LibTorch's codes keep that sign
        shards.view(at::kShort)[1][3] = 0x7fc0, values.copy_(shards);
      const Fp8Weight whole(values);
      WeightSite site;
      site.value = at::zeros({out, in}, at::kByte);
      for (const bool columns : {false, true}) {
        const int64_t lines = columns ? in : out, n = out * in;
        const Tensor codes = at::full({out, in}, 0x55, at::kByte), scales = at::zeros({lines}, at::kFloat);
        const std::vector<int64_t> cuts = {0, n / 3 + 1, n / 3 + 5, n - 7, n};
        const auto piece = [&](size_t i, float* by, bool encodes) {
          return FlatLines{cuts[i],
                           cuts[i + 1] - cuts[i],
                           in,
                           {static_cast<const char*>(shards.const_data_ptr()) +
                                cuts[i] * static_cast<int64_t>(shards.element_size()),
                            type == at::kFloat ? Form::fp32 : Form::bf16},
                           columns,
                           by,
                           encodes ? codes.mutable_data_ptr<uint8_t>() + cuts[i] : nullptr};
        };
        const auto first = [&](size_t i) { return columns ? 0 : cuts[i] / in; };
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          std::vector<float> own(static_cast<size_t>(lines));
          const FlatLines of_shard = piece(i, own.data(), false);
          flat_scales(of_shard);
          MergedScales merged;
          merged.at[merged.count++] = {own.data(), scales.mutable_data_ptr<float>() + first(i), of_shard.lines()};
          merge_scales(merged);
        }
        for (size_t i = 0; i + 1 < cuts.size(); ++i)
          flat_codes(piece(i, scales.mutable_data_ptr<float>() + first(i), true));
        site.codes[columns] = {codes.view(at::kFloat8_e4m3fn), scales};
      }
      const Fp8Weight gathered(site, [&]() -> Tensor { throw std::runtime_error("the values are not there"); });
      for (const bool columns : {false, true}) {
        const Fp8Lines a = columns ? whole.columns() : whole.rows(), b = columns ? gathered.columns() : gathered.rows();
        EXPECT_TRUE(a.codes.view(at::kByte).equal(b.codes.view(at::kByte))) << out << " x " << in << columns;
        EXPECT_TRUE(a.scales.equal(b.scales)) << out << " x " << in << columns;
      }
      site.codes[1] = {};
      const Fp8Weight of_rows(site, [&] { return values; });
      EXPECT_THROW(of_rows.columns(), InternalError);
    }
}

TEST_P(Fp8Products, BytesOnMetaAreThoseOfTheRun) {
  const auto peak = [](at::DeviceType type) {
    const auto options = at::TensorOptions(at::kBFloat16).device(type);
    const Tensor x = at::zeros({600, kIn}, options), w = at::zeros({kOut, kIn}, options),
                 dy = at::zeros({600, kOut}, options), dw = at::zeros({kOut, kIn}, options.dtype(at::kFloat));
    const testing::ByteCount count(type);
    const Tensor y = fp8_linear(x, w, {}, true, at::kBFloat16), dx = fp8_input_gradient(dy, w, at::kBFloat16);
    fp8_weight_gradient(dw, dy, x, true, false);
    return count.peak();
  };
  // LibTorch's operators take tensors on a CPU that they do not on a GPU, whose bytes those on meta are.
  if (ours) EXPECT_EQ(peak(at::kMeta), peak(at::kCPU));
  EXPECT_GT(peak(at::kMeta), 600 * kIn);
}

INSTANTIATE_TEST_SUITE_P(, Fp8Products, each_table(), table_name);

}  // namespace
}  // namespace tessera::ops::in_eight_bits
