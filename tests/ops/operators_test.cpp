#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "byte_count.h"
#include "operators.h"
#include "tables.h"
#include "tessera/base/check.h"
#include "tessera/ops/reference.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tangent.h"

namespace tessera::testing {

namespace {

class Operators : public WithEachTable<std::tuple<const ops::Kernels*, Operator>> {};

Tensors map(const Tensors& tensors, const std::function<Tensor(const Tensor&)>& f) {
  Tensors out;
  for (const auto& t : tensors) out.push_back(f(t));
  return out;
}
Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

Sites sites_of(const Tensors& weights, bool trainable = true) {
  Sites out;
  for (const auto& w : weights) out.sites.push_back({w.clone(), trainable ? at::full_like(w, NAN) : Tensor(), true});
  const auto options = weights.empty() ? at::TensorOptions() : weights[0].options();
  out.anchor = at::zeros({1}, options).requires_grad_(trainable);
  return out;
}

/// Gradients of the inputs; the sites receive theirs.
Tensors run_backward(const Tensor& y, const Tensor& dy, Tensors inputs, const Sites& sites) {
  inputs.push_back(sites.anchor);
  if (!inputs.back().requires_grad()) inputs.pop_back();
  auto grads =
      torch::autograd::grad({y}, inputs, {dy}, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
  grads.resize(inputs.size() - (sites.anchor.requires_grad() ? 1 : 0));
  return grads;
}

void expect_close(const Tensor& got, const Tensor& expected, const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double bound = 3e-6 * expected.abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(), bound) << what;  // NaN fails too
}

struct Expected {
  Tensor y, dy;
  Tensors input_grads, weight_grads;
};

Expected expected_of(const Operator& op) {
  const auto to_double = [](const Tensor& t) { return leaf(t.to(at::kDouble)); };
  const Tensors inputs = map(op.inputs, to_double), weights = map(op.weights, to_double);
  const Tensors constants =
      map(op.constants, [](const Tensor& t) { return t.is_floating_point() ? t.to(at::kDouble) : t; });
  Expected out;
  out.y = op.reference(inputs, weights, constants);
  out.dy = at::randn(out.y.sizes(), at::detail::createCPUGenerator(8), at::kFloat);
  Tensors leaves = inputs;
  leaves.insert(leaves.end(), weights.begin(), weights.end());
  auto grads = torch::autograd::grad({out.y}, leaves, {out.dy.to(at::kDouble)});
  out.weight_grads.assign(grads.begin() + inputs.size(), grads.end());
  grads.resize(inputs.size());
  out.input_grads = grads;
  out.y = out.y.detach();
  return out;
}

TEST(GeluLinear, AKnownResultIsTakenAsItIsAndHasTheSameGradients) {
  const auto random = [](at::IntArrayRef shape) {
    return at::randn(shape, at::detail::createCPUGenerator(3), at::kFloat);
  };
  const Tensor x = random({37, 24}).requires_grad_(), dy = random({37, 20});
  std::vector<Tensors> found;
  for (const bool again : {false, true}) {
    Sites w = sites_of({random({20, 24}), random({20})});
    Tensor known;
    if (again) {
      const at::NoGradGuard none;
      known = ops::gelu_linear(x, w[0], &w[1], w.anchor);
    }
    const Tensor y = ops::gelu_linear(x, w[0], &w[1], w.anchor, at::kFloat, again ? &known : nullptr);
    EXPECT_TRUE(!again || y.const_data_ptr() == known.const_data_ptr()) << "it was computed again";
    found.push_back(run_backward(y, dy, {x}, w));
    found.back().insert(found.back().end(), {w[0].grad, w[1].grad});
  }
  for (size_t i = 0; i < found[0].size(); ++i) EXPECT_TRUE(at::equal(found[0][i], found[1][i])) << i;
}

}  // namespace

TEST(ForwardMode, AnOperatorWithoutARuleRefusesWhatMovesAndAGraphIsRefused) {
  const Tensor x = at::ones({4, 8}), bias = at::zeros({2, 4, 4});
  {
    const at::NoGradGuard no_graph;
    const ops::ForwardMode mode;
    const Tensor q = ops::moving(x, at::ones_like(x));
    EXPECT_THROW(ops::attention_bias(q, x, x, 2, bias), InternalError);
    EXPECT_FALSE(ops::moves(ops::attention_bias(x, x, x, 2, bias)));
    const ops::ForwardMode inner;  // as another thread's, which shares the level
    EXPECT_TRUE(ops::moves(q));
  }
  EXPECT_THROW(ops::ForwardMode(), InternalError);
}

TEST_P(Operators, ValuesAndGradientsEqualTheReference) {
  const Operator& op = std::get<1>(GetParam());
  const Expected expected = expected_of(op);
  const Tensors inputs = map(op.inputs, leaf);
  Sites sites = sites_of(op.weights);
  const Tensor y = op.fast(inputs, sites, op.constants);
  expect_close(y, expected.y, "value");

  const Tensors grads = run_backward(y, expected.dy, inputs, sites);
  for (size_t i = 0; i < grads.size(); ++i)
    expect_close(grads[i], expected.input_grads[i], "gradient of input " + std::to_string(i));
  for (size_t i = 0; i < op.weights.size(); ++i) {
    expect_close(sites[i].grad, expected.weight_grads[i], "gradient of weight " + std::to_string(i));
    EXPECT_FALSE(sites[i].fresh);
  }
  run_backward(y, expected.dy, inputs, sites);
  for (size_t i = 0; i < op.weights.size(); ++i)
    expect_close(sites[i].grad, 2 * expected.weight_grads[i], "the second gradient is added");
}

// [Note: forward mode] in ops/tangent.h.
TEST_P(Operators, TangentsAreTheDifferencesOfTheReference) {
  constexpr double kStep = 1e-6;
  const Operator& op = std::get<1>(GetParam());
  if (op.inputs.empty()) return;  // it reads a weight, which never moves
  const auto to_double = [](const Tensor& t) { return t.is_floating_point() ? t.to(at::kDouble) : t; };
  const Tensors weights = map(op.weights, to_double), constants = map(op.constants, to_double);
  auto generator = at::detail::createCPUGenerator(9);
  const at::NoGradGuard no_graph;
  // along all inputs together, and along each alone: the others stand still
  for (size_t only = op.inputs.size() == 1 ? 1 : 0; only <= op.inputs.size(); ++only) {
    Tensors directions;
    for (size_t i = 0; i < op.inputs.size(); ++i)
      directions.push_back(
          only == op.inputs.size() || only == i ? at::randn(op.inputs[i].sizes(), generator, at::kFloat) : Tensor());
    const auto displaced = [&](double by) {
      Tensors inputs = map(op.inputs, to_double);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (directions[i].defined()) inputs[i] = inputs[i] + by * directions[i].to(at::kDouble);
      return op.reference(inputs, weights, constants);
    };
    const Tensor differences = (displaced(kStep) - displaced(-kStep)) / (2 * kStep);
    const ops::ForwardMode mode;
    Tensors moving;
    for (size_t i = 0; i < op.inputs.size(); ++i) moving.push_back(ops::moving(op.inputs[i], directions[i]));
    Sites sites = sites_of(op.weights, /*trainable=*/false);
    const auto [value, tangent] = ops::parts(op.fast(moving, sites, op.constants));
    expect_close(value, displaced(0), "value");
    ASSERT_TRUE(tangent.defined()) << "the tangent of input " << only << " is lost";
    const double bound = 1e-5 * differences.abs().max().item<double>();
    EXPECT_LE((tangent.to(at::kDouble) - differences).abs().max().item<double>(), bound) << "input " << only;
  }
}

TEST_P(Operators, WeightsMayMoveBetweenForwardAndBackward) {
  const Operator& op = std::get<1>(GetParam());
  const Expected expected = expected_of(op);
  const Tensors inputs = map(op.inputs, leaf);
  Sites sites = sites_of(op.weights);
  const Tensor y = op.fast(inputs, sites, op.constants);
  for (auto& site : sites.sites) {
    Tensor old = std::exchange(site.value, site.value.clone());
    old.fill_(NAN);  // the slot is reused
    EXPECT_EQ(old.use_count(), 1) << "the graph holds a weight";
  }
  const Tensors grads = run_backward(y, expected.dy, inputs, sites);
  for (size_t i = 0; i < grads.size(); ++i)
    expect_close(grads[i], expected.input_grads[i], "gradient of input " + std::to_string(i));
}

// An operator whose saved input nobody else holds may write the gradient in its place (ops/node.h).
TEST_P(Operators, InputsThatOnlyTheGraphHoldsGetTheSameGradients) {
  const Operator& op = std::get<1>(GetParam());
  const Expected expected = expected_of(op);
  const Tensors inputs = map(op.inputs, leaf);
  Sites sites = sites_of(op.weights);
  const Tensor y = op.fast(map(inputs, [](const Tensor& t) { return t.clone(); }), sites, op.constants);
  const Tensors grads = run_backward(y, expected.dy, inputs, sites);
  for (size_t i = 0; i < grads.size(); ++i)
    expect_close(grads[i], expected.input_grads[i], "gradient of input " + std::to_string(i));
  for (size_t i = 0; i < op.weights.size(); ++i)
    expect_close(sites[i].grad, expected.weight_grads[i], "gradient of weight " + std::to_string(i));
}

TEST_P(Operators, InputsWithTwoReadersKeepTheirValuesForBoth) {
  const Operator& op = std::get<1>(GetParam());
  const Expected expected = expected_of(op);
  const Tensors inputs = map(op.inputs, leaf);
  Sites sites = sites_of(op.weights);
  Tensor y;
  {
    const Tensors shared = map(inputs, [](const Tensor& t) { return t.clone(); });
    y = op.fast(shared, sites, op.constants) + op.fast(shared, sites, op.constants);
  }
  const Tensors grads = run_backward(y, expected.dy, inputs, sites);
  for (size_t i = 0; i < grads.size(); ++i)
    expect_close(grads[i], 2 * expected.input_grads[i], "gradient of input " + std::to_string(i));
}

TEST_P(Operators, FrozenWeightsPassGradientsOn) {
  const Operator& op = std::get<1>(GetParam());
  if (op.inputs.empty()) GTEST_SKIP() << op.name << " has no inputs to pass a gradient to";
  const Expected expected = expected_of(op);
  const Tensors inputs = map(op.inputs, leaf);
  Sites sites = sites_of(op.weights, /*trainable=*/false);
  const Tensors grads = run_backward(op.fast(inputs, sites, op.constants), expected.dy, inputs, sites);
  for (size_t i = 0; i < grads.size(); ++i)
    expect_close(grads[i], expected.input_grads[i], "gradient of input " + std::to_string(i));
}

TEST_P(Operators, WeightsLearnWhenInputsNeedNoGradient) {
  const Operator& op = std::get<1>(GetParam());
  if (op.weights.empty()) GTEST_SKIP() << op.name << " has no weights";
  const Expected expected = expected_of(op);
  Sites sites = sites_of(op.weights);
  run_backward(op.fast(op.inputs, sites, op.constants), expected.dy, {}, sites);
  for (size_t i = 0; i < op.weights.size(); ++i)
    expect_close(sites[i].grad, expected.weight_grads[i], "gradient of weight");
}

TEST_P(Operators, GradientsOfWeightsLeftForLaterHaveTheSameBits) {
  const Operator& op = std::get<1>(GetParam());
  if (op.weights.empty()) GTEST_SKIP() << op.name << " has no weights";
  const Expected expected = expected_of(op);
  const auto clone = [](const Tensor& t) { return t.clone(); };
  const Tensors inputs = map(op.inputs, leaf);
  Sites now = sites_of(op.weights), sites = sites_of(op.weights);
  const Tensors grads = run_backward(op.fast(map(inputs, clone), now, op.constants), expected.dy, inputs, now);

  std::vector<ops::WeightSite*> trained;
  for (auto& site : sites.sites) trained.push_back(&site), site.grad = Tensor();
  ops::DeferredGradients deferred(trained);
  {
    const Tensor y = op.fast(map(inputs, clone), sites, op.constants);
    const ops::DeferredGradients::Scope scope(deferred);
    const Tensors first = run_backward(y, expected.dy, inputs, sites);
    for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::equal(first[i], grads[i])) << "input " << i;
  }
  for (size_t i = 0; i < op.weights.size(); ++i) {
    EXPECT_FALSE(sites[i].grad.defined()) << "memory of its own is gone with the scope";
    sites[i].grad = at::full_like(op.weights[i], NAN);
    sites[i].fresh = true;
  }
  deferred.run();
  for (size_t i = 0; i < op.weights.size(); ++i) EXPECT_TRUE(at::equal(sites[i].grad, now[i].grad)) << "weight " << i;
}

TEST(GatedResidual, ARebuiltGraphNeedsNoValue) {
  const Tensor x = at::randn({7, 5}).requires_grad_(), y = at::randn({7, 5}).requires_grad_(),
               gate = at::randn({2, 5}).requires_grad_(), dy = at::randn({7, 5});
  const ops::RowIndex rows(at::tensor({0, 0, 1, 1, 1, 0, 1}, at::kInt));
  const Tensor whole = ops::gated_residual(x, y, gate, rows), hollow = ops::gated_residual(x, y, gate, rows, false);
  EXPECT_EQ(hollow.sizes(), whole.sizes());
  EXPECT_EQ(hollow.storage().nbytes(), sizeof(float)) << "no memory for values that nobody reads";
  const auto expected = torch::autograd::grad({whole}, {x, y, gate}, {dy});
  const auto found = torch::autograd::grad({hollow}, {x, y, gate}, {dy});
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << "input " << i;
}

TEST_P(Operators, ThreadsDoNotChangeABit) {
  if (!ours) GTEST_SKIP() << "LibTorch's products divide their sums among threads";
  const Operator& op = std::get<1>(GetParam());
  const Expected expected = expected_of(op);
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const Tensors inputs = map(op.inputs, leaf);
    Sites sites = sites_of(op.weights);
    const Tensor y = op.fast(inputs, sites, op.constants);
    Tensors all = run_backward(y, expected.dy, inputs, sites);
    for (auto& site : sites.sites) all.push_back(site.grad);
    all.push_back(y.detach());
    return all;
  };
  const Tensors one = run(1), three = run(3);
  at::set_num_threads(1);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
}

TEST_P(Operators, MetaTakesTheBytesTheCpuTakes) {
  const Operator& op = std::get<1>(GetParam());
  struct Numbers {
    int64_t forward_peak, saved, backward_peak, left;
    bool operator==(const Numbers&) const = default;
  };
  const auto run = [&](at::Device device) {
    const auto move = [&](const Tensor& t) { return t.to(device); };
    const Tensors inputs = map(map(op.inputs, move), leaf), constants = map(op.constants, move);
    Sites sites = sites_of(map(op.weights, move));
    op.fast(inputs, sites, constants);  // kernels may keep scratch of their own from the first call on
    const ByteCount count(device.type());
    Tensor y = op.fast(inputs, sites, constants);
    Numbers n;
    n.forward_peak = count.peak(), n.saved = count.live();
    Tensor dy = at::ones(y.sizes(), y.options());
    const ByteCount again(device.type());
    Tensors wanted = inputs;
    wanted.push_back(sites.anchor);
    const auto grads = torch::autograd::grad({y}, wanted, {dy}, false, false, true);
    n.backward_peak = again.peak(), n.left = again.live();
    return n;
  };
  const Numbers cpu = run(at::kCPU), meta = run(at::kMeta);
  // LibTorch's kernels of CPUs take a few bytes of scratch that their meta forms do not.
  const double slack = ours ? 0 : 0.01 * static_cast<double>(cpu.forward_peak);
  EXPECT_NEAR(meta.forward_peak, cpu.forward_peak, slack);
  EXPECT_EQ(meta.saved, cpu.saved);
  EXPECT_NEAR(meta.backward_peak, cpu.backward_peak, slack);
  EXPECT_EQ(meta.left, cpu.left);
  EXPECT_GT(cpu.forward_peak, 0);
}

TEST_P(Operators, NothingIsSavedWithoutGradients) {
  const Operator& op = std::get<1>(GetParam());
  const at::NoGradGuard no_grad;
  Sites sites = sites_of(op.weights);
  op.fast(op.inputs, sites, op.constants);
  const ByteCount count(at::kCPU);
  const Tensor y = op.fast(op.inputs, sites, op.constants);
  EXPECT_EQ(count.live(), static_cast<int64_t>(y.nbytes()));
}

INSTANTIATE_TEST_SUITE_P(All, Operators, ::testing::Combine(each_table(), ::testing::ValuesIn(all_operators())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" + std::get<0>(info.param)->name;
                         });

using PassedOn = WithEachTable<>;

/// A norm that passes its input on to what else reads it has the gradient that autograd would have added; with kernels that add
/// it afterwards to the bit.
TEST_P(PassedOn, AnInputOfANormHasTheGradientsOfAllItsReaders) {
  const auto random = [](at::IntArrayRef shape, uint64_t seed) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
  };
  const Tensor dy = random({37, 24}, 1), dz = random({37, 24}, 2);
  const ops::RowIndex rows(at::cat({at::zeros({5}, at::kInt), at::ones({32}, at::kInt)}));
  for (const bool modulated : {false, true})
    for (const int read : {1, 2, 3}) {  // the norm's result, what is passed on, both
      std::vector<Tensors> found;
      for (const bool passes : {false, true}) {
        const Tensor x = random({37, 24}, 3).requires_grad_(), shift = random({2, 24}, 4).requires_grad_(),
                     scale = random({2, 24}, 5).requires_grad_();
        Sites w = sites_of({random({24}, 6), random({24}, 7)});
        Tensor passed, *to = passes ? &passed : nullptr;
        const Tensor y = modulated ? ops::modulated_norm(x, shift, scale, rows, 1e-6, at::kFloat, to)
                                   : ops::layer_norm(x, w[0], w[1], 1e-6, w.anchor, at::kFloat, to);
        ASSERT_EQ(passed.defined(), passes);
        if (passes) EXPECT_EQ(passed.const_data_ptr(), x.const_data_ptr()) << "it was copied";
        Tensors results, ups;
        if (read & 1) results.push_back(y), ups.push_back(dy);
        if (read & 2) results.push_back((passes ? passed : x) * 3), ups.push_back(dz);
        found.push_back(torch::autograd::grad(results, {x}, ups, true, false, true));
        if (read & 1 && !modulated) found.back().push_back(w[0].grad), found.back().push_back(w[1].grad);
        if (read & 1 && modulated)
          for (const Tensor& t : torch::autograd::grad(results, {shift, scale}, ups)) found.back().push_back(t);
      }
      for (size_t i = 0; i < found[0].size(); ++i) {
        EXPECT_LE((found[0][i] - found[1][i]).abs().max().item<double>(), 1e-6) << i << ", read " << read;
        if (&table != &ops::fused_kernels()) EXPECT_TRUE(at::equal(found[0][i], found[1][i])) << i << ", read " << read;
      }
    }
}

TEST_P(PassedOn, NothingIsPassedWhereNothingNeedsAGradient) {
  const at::NoGradGuard none;
  const Tensor x = at::ones({3, 8});
  Sites w = sites_of({at::ones({8}), at::zeros({8})});
  Tensor passed;
  ops::layer_norm(x, w[0], w[1], 1e-6, w.anchor, at::kFloat, &passed);
  EXPECT_FALSE(passed.defined());
}

INSTANTIATE_TEST_SUITE_P(, PassedOn, each_table(), table_name);

using Biases = WithEachTable<>;

const ops::Kernels* counted_table = nullptr;
std::vector<int64_t> rows_read;  ///< by the gradients of biases
void counted_bias_gradient(const Tensor& db, const Tensor& dy, bool add) {
  rows_read.push_back(dy.size(0));
  counted_table->bias_gradient(db, dy, add);
}

/// Who reads a linear's result may leave the sums of columns of its gradient: the bias has the gradient that it has from the
/// gradient itself, also where the result is read twice, and with the fused kernels no gradient is read again for it.
TEST_P(Biases, HaveTheirGradientsFromWhoWritesThatOfTheResult) {
  constexpr int64_t kTokens = 130, kGroups = 3, kWidth = 24;
  const auto random = [](at::IntArrayRef shape, uint64_t seed) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
  };
  ops::Kernels counting = table;
  counted_table = &table, counting.bias_gradient = counted_bias_gradient;
  const ops::CpuKernelsScope scope(counting);
  const ops::RowIndex rows(at::zeros({kTokens}, at::kInt));
  const char* readers[] = {"norm", "norm of 16-bit weights", "gate", "sum", "gelu"};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (int reader = 0; reader < 5; ++reader)
      for (const bool twice : {false, true}) {
        SCOPED_TRACE(std::string(readers[reader]) + (twice ? ", read twice" : "") + ", " + at::toString(type));
        std::vector<Tensor> found;
        for (const bool alone : {false, true}) {  // behind another operator nobody sees the linear
          Sites w = sites_of({random({kWidth, 16}, 1), random({kWidth}, 2)}), next = sites_of({random({kWidth}, 3)}),
                last = sites_of({random({8, kWidth}, 4), random({8}, 5)});
          for (ops::WeightSite& site : w.sites) site.value = site.value.to(type);
          for (ops::WeightSite& site : last.sites) site.value = site.value.to(type);
          if (reader == 1) next[0].value = next[0].value.to(at::kBFloat16);
          const Tensor x = random({kTokens, 16}, 6).to(type), stream = random({kTokens, kWidth}, 7).requires_grad_(),
                       gate = random({1, kWidth}, 8);
          const Tensor made = ops::linear(x, w[0], &w[1], w.anchor, type), y = alone ? made.alias() : made;
          Tensor out = reader <= 1   ? ops::rms_norm(y, next[0], 1e-6, next.anchor)
                       : reader == 2 ? ops::gated_residual(stream, y, gate, rows)
                       : reader == 3 ? ops::sum(stream, y)
                                     : ops::gelu_linear(y, last[0], &last[1], last.anchor, type);
          std::vector<Tensor> results = {out}, ups = {random(out.sizes(), 9).to(out.scalar_type())};
          if (twice) results.push_back(y * 2), ups.push_back(random(y.sizes(), 10).to(type));
          rows_read.clear();
          torch::autograd::grad(results, {w.anchor}, ups, false, false, /*allow_unused=*/true);
          found.push_back(w[1].grad);
          const bool leaves = &table == &ops::fused_kernels() && !alone && (reader != 3 || type != at::kFloat);
          EXPECT_EQ(rows_read.back(), leaves && !twice ? kGroups : kTokens);
        }
        const double size = found[1].abs().max().item<double>();
        EXPECT_LE((found[0] - found[1]).abs().max().item<double>(), size * (type == at::kFloat ? 1e-5 : 1.0 / 128));
        EXPECT_GT(size, 0);
      }
}

/// An fp32 operand of a product whose weight and result are bf16 is rounded; one whose result is fp32 or fp16 is not, and the
/// CPU's own kernels round none.
TEST_P(Biases, AnFp32OperandOfABf16ProductIsRounded) {
  const auto random = [](at::IntArrayRef shape, uint64_t seed) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
  };
  const Tensor x = random({67, 40}, 1), w = random({24, 40}, 2), b = random({24}, 3), dy = random({67, 24}, 4);
  for (const at::ScalarType form : {at::kBFloat16, at::kHalf})
    for (const at::ScalarType type : {form, at::kFloat}) {
      const auto run = [&](const Tensor& from) {
        const Tensor value = table.linear(from, w.to(form), b.to(form), false, type), dw = at::empty({24, 40});
        table.linear_weight_gradient(dw, dy.to(type), from, false, false);
        return Tensors{value, dw};
      };
      const Tensors whole = run(x), half = run(x.to(form).to(at::kFloat));
      const bool rounds = !ours && type == at::kBFloat16;
      for (size_t i = 0; i < 2; ++i)
        EXPECT_EQ(at::equal(whole[i], half[i]), rounds) << i << " of " << at::toString(type);
    }
}

INSTANTIATE_TEST_SUITE_P(, Biases, each_table(), table_name);

TEST(Linear, AllocatesItsResultAndNothingElse) {
  for (const Operator& op : all_operators()) {
    if (op.name.find("linear") == std::string::npos || op.name == "linears_of_one_input") continue;  // several results
    const Tensors inputs = map(op.inputs, leaf);
    Sites sites = sites_of(op.weights);
    Tensor y = op.fast(inputs, sites, {});
    const Tensor dy = at::ones_like(y);
    y = Tensor();
    const ByteCount forward(at::kCPU);
    y = op.fast(inputs, sites, {});
    EXPECT_EQ(forward.peak(), static_cast<int64_t>(y.nbytes())) << op.name;
    const ByteCount backward(at::kCPU);
    const auto grads = torch::autograd::grad({y}, {inputs[0], sites.anchor}, {dy}, false, false, true);
    EXPECT_EQ(backward.peak(), static_cast<int64_t>(grads[0].nbytes())) << op.name;
  }
}

TEST(Relu, KeepsItsResultAndNotWhatItWasTakenOf) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const Tensor leaf = at::ones({67, 71}, device).requires_grad_();
    const ByteCount count(device.type());
    const Tensor y = ops::relu(leaf * 2);
    EXPECT_EQ(count.live(), static_cast<int64_t>(y.nbytes())) << device;
  }
}

TEST(LinearAttention, OfFp16StaysWithinItsLargestValue) {
  const Tensor tiny = at::full({4, 2}, 6e-8).to(at::kHalf), v = at::full({4, 2}, 60000.0).to(at::kHalf);
  // values are divided by a sum of keys that is far less than what multiplied them
  const Tensor ones = at::ones({4, 2}, at::kHalf);
  const std::vector<int64_t> at = {0, 4};
  const Tensor states = ops::linear_attention_states(ones, tiny, v, 1, at);
  const Tensor out = ops::linear_attention_result(ones, tiny, states, 1, at, 1e-15);
  EXPECT_EQ(out.scalar_type(), at::kHalf);
  EXPECT_TRUE(out.eq(65504).all().item<bool>()) << out;
}

TEST(GatedResidual, PassesTheGradientOnWithoutACopy) {
  const Tensor x = at::randn({8, 4}).requires_grad_(), y = at::randn({8, 4}), gate = at::randn({1, 4});
  const Tensor dy = at::randn({8, 4});
  const auto grads =
      torch::autograd::grad({ops::gated_residual(x, y, gate, ops::RowIndex(at::zeros({8}, at::kInt)))}, {x}, {dy});
  EXPECT_EQ(grads[0].const_data_ptr(), dy.const_data_ptr());
}

TEST(Attention, AddsABiasWithoutScale) {
  const Tensor q = at::randn({70, 12}), k = at::randn({33, 12}), v = at::randn({33, 12}), bias = at::randn({3, 70, 33});
  const auto d = [](const Tensor& t) { return t.to(at::kDouble); };
  expect_close(ops::attention_bias(q, k, v, 3, bias), ops::reference::attention_bias(d(q), d(k), d(v), 3, d(bias)),
               "value");
}

TEST(Attention, StandsLargeScores) {
  const Tensor q = at::randn({40, 8}) * 300, k = at::randn({50, 8}) * 300, v = at::randn({50, 8});
  const auto d = [](const Tensor& t) { return t.to(at::kDouble); };
  const Tensor got = ops::attention(q, k, v, 1, {0, 40}, {0, 50});
  const Tensor expected = ops::reference::attention(d(q), d(k), d(v), 1, {0, 40}, {0, 50});
  EXPECT_LE((d(got) - expected).abs().max().item<double>(), 0.02) << "scores of 1e5 are rounded to 1e-2";
}

TEST(Attention, RefusesQueriesWithoutKeys) {  // keys without queries are ordinary where ranks share a sequence
  const Tensor q = at::randn({4, 8}), k = at::randn({4, 8});
  EXPECT_THROW(ops::attention(q, k, k, 1, {0, 2, 4}, {0, 4, 4}), InternalError);
  EXPECT_EQ(ops::attention(q, k, k, 1, {0, 4, 4}, {0, 2, 4}).size(0), 4);
}

TEST(Operators, LetNaNThrough) {
  Tensor x = at::randn({64, 64});
  x[3][5] = NAN;
  EXPECT_TRUE(ops::gelu_tanh(x)[3][5].isnan().item<bool>());
  EXPECT_TRUE(ops::attention(x, x, x, 1, {0, 64}, {0, 64})[3].isnan().all().item<bool>());
}

}  // namespace tessera::testing
