// Muon against its formulas in fp64, over shapes, settings, cuts of a tensor and forms of masters.
#include "tessera/optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

namespace tessera::optim {
namespace {

at::Tensor values(std::vector<int64_t> shape, uint64_t index) {
  const at::Tensor drawn = at::empty(shape);
  RandomKey(5, Purpose::test, index).normal(drawn.mutable_data_ptr<float>(), 0, static_cast<size_t>(drawn.numel()));
  return drawn;
}

/// In fp64, always of the wide form.
at::Tensor plain_iterations(at::Tensor x, int64_t steps, const MuonOptions& o) {
  x = x.to(at::kDouble);
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  const double norm = x.norm().item<double>();
  x = x / (o.adds_eps ? norm + o.eps : std::max(norm, o.eps));
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor a = at::mm(x, x.t());
    x = o.coefficients[0] * x + at::mm(o.coefficients[1] * a + o.coefficients[2] * at::mm(a, a), x);
  }
  return tall ? x.t() : x;
}

double largest_difference(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>();
}

at::Tensor work_for(const at::Tensor& x) {
  const DType type = x.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
  return at::empty({plan::transform_bytes({1, x.size(0), x.size(1)}, type)}, at::kByte);
}

TEST(Muon, IterationsFollowTheirFormulaOnEveryShape) {
  const MuonOptions other = {.coefficients = {2, -1.5, 0.5}, .eps = 0.3, .adds_eps = true};
  for (const MuonOptions& options : {MuonOptions{}, other})
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{8, 8}, {20, 6}, {6, 20}, {1, 12}, {9, 1}, {65, 130}, {1, 1}})
      for (const int64_t steps : {1, 3, 5}) {
        const at::Tensor x = values(shape, 2), expected = plain_iterations(x, steps, options);
        at::Tensor exact = x.clone(), narrow = x.to(at::kBFloat16);
        orthogonalise(exact, work_for(exact), steps, options);
        orthogonalise(narrow, work_for(narrow), steps, options);
        EXPECT_LE(largest_difference(exact, expected), 2e-4 * expected.abs().max().item<double>())
            << shape[0] << "x" << shape[1];
        EXPECT_LE(largest_difference(narrow, expected), 0.06) << shape[0] << "x" << shape[1];
        if (x.numel() > 1) EXPECT_GT(largest_difference(narrow, expected), 0) << "it is rounded";
      }
}

TEST(Muon, AMatrixOfZerosStaysZero) {
  for (const bool adds : {false, true}) {
    at::Tensor x = at::zeros({5, 7});
    orthogonalise(x, work_for(x), 5, {.adds_eps = adds});
    EXPECT_EQ(x.abs().max().item<double>(), 0);
  }
}

TEST(Muon, AnIterationWithTooLittleMemoryIsAFault) {
  at::Tensor x = values({6, 7}, 9);
  EXPECT_THROW(orthogonalise(x, work_for(x).narrow(0, 0, 400), 5, {}), InternalError);
}

TEST(Muon, StepsAreAsLargeAsTheirScaleSays) {
  const Muon rms({}), original({.scale = MuonOptions::Scale::original});
  EXPECT_DOUBLE_EQ(rms.scale({6, 4, 3, 3}), 0.2 * std::sqrt(6.0)) << "of the first two sizes";
  EXPECT_DOUBLE_EQ(rms.scale({7, 65, 1, 1, 1}), 0.2 * std::sqrt(65.0));
  EXPECT_DOUBLE_EQ(original.scale({20, 6}), std::sqrt(20.0 / 6));
  EXPECT_DOUBLE_EQ(original.scale({6, 20}), 1);
  EXPECT_DOUBLE_EQ(original.scale({5, 2, 3, 1}), std::sqrt(3.0)) << "of the last two";
}

/// One matrix as ranks hold it, brought together as the engine does.
struct Matrix {
  plan::ParamSpec spec;
  std::vector<plan::StateSpec> specs;
  std::vector<int64_t> cuts;
  at::Tensor param, momentum;

  Matrix(const Muon& muon, std::vector<int64_t> shape, std::vector<int64_t> at)
      : spec{"w", shape, true}, cuts(std::move(at)), param(values(shape, 1).view({-1}).clone()) {
    spec.whole = true;
    specs = muon.states(spec);
    momentum = at::zeros_like(param);
  }

  void step(const Muon& muon, const plan::StateFormat& format, const net::StepControl& control,
            const at::Tensor& grad) {
    const at::Tensor direction = at::empty({param.numel()}, format.matrices == DType::f32 ? at::kFloat : at::kBFloat16);
    const auto each = [&](const auto& act) {
      for (size_t c = 0; c + 1 < cuts.size(); ++c) {
        net::Slice slice;
        slice.spec = &spec, slice.numel = param.numel(), slice.begin = cuts[c], slice.end = cuts[c + 1];
        slice.param = param.mutable_data_ptr<float>() + cuts[c];
        slice.grad = grad.const_data_ptr<float>() + cuts[c];
        slice.specs = &specs, slice.states = {momentum.mutable_data_ptr<float>() + cuts[c]};
        slice.direction = static_cast<uint8_t*>(direction.mutable_data_ptr()) + cuts[c] * direction.element_size();
        act(slice);
      }
    };
    each([&](const net::Slice& slice) { muon.direct(slice, control); });
    const int64_t bytes = 4 * plan::transform_bytes(plan::matrix_shape(spec.shape), DType::f32);
    muon.transform(spec, direction, at::empty({bytes}, at::kByte));
    each([&](const net::Slice& slice) { muon.update(slice, control); });
  }
};

TEST(Muon, FollowsItsFormulasWhereverATensorIsCut) {
  const MuonOptions cases[] = {
      {},
      {.momentum = 0.7, .nesterov = false, .weight_decay = 0.3},
      {.momentum = 0.9, .damped = false, .scale = MuonOptions::Scale::original, .weight_decay = 0},
      {.adds_eps = true, .batches = true}};
  for (MuonOptions options : cases)
    for (const auto& shape : std::vector<std::vector<int64_t>>{{24, 30}, {30, 24}, {3, 16, 20}, {8, 4, 3, 3}}) {
      options.format.matrices = DType::f32;
      const Muon muon(options);
      const int64_t count = c10::multiply_integers(shape);
      Matrix whole(muon, shape, {0, count}), cut(muon, shape, {0, 256, count});
      at::Tensor p = whole.param.to(at::kDouble), m = at::zeros_like(p);
      for (int64_t step = 1; step <= 6; ++step) {
        const at::Tensor grad = values({count}, 10 + static_cast<uint64_t>(step));
        const net::StepControl control{step, 2e-2, 0.5};
        whole.step(muon, options.format, control, grad);
        cut.step(muon, options.format, control, grad);
        const at::Tensor g = grad.to(at::kDouble) * 0.5 * (options.damped ? 1 - options.momentum : 1);
        m = options.momentum * m + g;
        at::Tensor u = options.nesterov ? options.momentum * m + g : m;
        const bool batch = options.batches && shape.size() == 3;
        u = batch ? u.view(shape).clone() : u.view({1, shape[0], count / shape[0]}).clone();
        for (int64_t b = 0; b < u.size(0); ++b) u[b].copy_(plain_iterations(u[b], 5, options));
        p = p * (1 - 2e-2 * options.weight_decay) - 2e-2 * muon.scale(shape) * u.reshape({-1});
      }
      EXPECT_LE(largest_difference(whole.param, p), 1e-4) << shape[0] << "x" << shape[1];
      EXPECT_TRUE(at::equal(whole.param, cut.param)) << "not a bit of it depends on the cuts";
      EXPECT_LE(largest_difference(whole.momentum, m), 1e-5);
    }
}

TEST(Muon, OtherParametersHaveAdamWAtTheirOwnRate) {
  MuonOptions options{.adamw = {.betas = {0.8, 0.9}, .eps = 1e-6, .weight_decay = 0.2}, .adamw_rate = 3};
  const Muon muon(options);
  AdamWOptions same = options.adamw;
  const AdamW adamw(same);
  const plan::ParamSpec spec = {"b", {300}};
  const auto specs = muon.states(spec);
  EXPECT_EQ(specs, adamw.states(spec));
  const auto run = [&](const net::UnitUpdate& update, double lr) {
    at::Tensor p = values({300}, 3), m = at::zeros({300}), v = at::zeros({300});
    for (int64_t step = 1; step <= 4; ++step) {
      const at::Tensor grad = values({300}, 20 + static_cast<uint64_t>(step));
      net::Slice slice;
      slice.spec = &spec, slice.numel = slice.end = 300, slice.param = p.mutable_data_ptr<float>();
      slice.grad = grad.const_data_ptr<float>(), slice.specs = &specs;
      slice.states = {m.mutable_data_ptr<float>(), v.mutable_data_ptr<float>()};
      update.update(slice, {step, lr, 1.0});
    }
    return p;
  };
  EXPECT_TRUE(at::equal(run(muon, 1e-2), run(adamw, 3e-2)));
  EXPECT_FALSE(at::equal(run(muon, 1e-2), run(adamw, 1e-2)));
}

}  // namespace
}  // namespace tessera::optim
