// What a thread's operators are asked beside their operands.
#include "tessera/ops/session.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "tessera/ops/kernels.h"
#include "tessera/ops/ops.h"

namespace tessera::ops {
namespace {

WeightSite site(int64_t out, int64_t in) {
  WeightSite s;
  s.value = at::rand({out, in});
  s.grad = at::empty({out, in});
  s.fresh = true;
  return s;
}

TEST(Session, ScopesNestAndAnExceptionEndsThem) {
  plan::AttentionUse use;
  const AttentionScope outer(plan::Attention::cudnn, &use);
  try {
    const AttentionScope inner(plan::Attention::flash);
    const TargetScope target(tessera::target("sm_90", "test"));
    EXPECT_EQ(session().attention.kernel, plan::Attention::flash);
    EXPECT_EQ(session().attention.use, nullptr);
    EXPECT_EQ(session().target->name, "sm_90");
    const TargetScope none(std::nullopt);
    EXPECT_FALSE(session().target);
    throw std::runtime_error("a fault of an operator");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(session().attention.kernel, plan::Attention::cudnn);
  EXPECT_EQ(session().attention.use, &use);
  EXPECT_FALSE(session().target);
}

struct Linears {
  Tensor y, dx;
  std::array<Tensor, 2> dw;
};

/// Two linears with bf16 weights that read one fp32 input.
Linears linears_of_a_text(const Tensor& x, const std::array<Tensor, 2>& w, RoundedInput* shared) {
  const RoundedScope scope(shared);
  std::array<WeightSite, 2> sites;
  for (size_t i = 0; i < 2; ++i) sites[i] = {w[i], at::full(w[i].sizes(), NAN), true};
  const Tensor input = x.detach().requires_grad_(), anchor = at::zeros({}).requires_grad_();
  Tensor passed;
  const Tensor k = linear(input, sites[0], nullptr, anchor, at::kBFloat16, When::at_once, &passed),
               v = linear(passed, sites[1], nullptr, anchor, at::kBFloat16), y = at::cat({k, v}, 1);
  if (shared) EXPECT_EQ(shared->rows(passed).const_data_ptr(), shared->rows(input).const_data_ptr());
  const auto readers = shared ? shared->readers(input) : nullptr;
  const auto grads = torch::autograd::grad({y}, {input, anchor}, {at::ones_like(y)}, false, false, true);
  if (readers) {
    EXPECT_EQ(readers->readers, 1) << "the linears have read it, this test has not";
    EXPECT_TRUE(readers->made.defined() && readers->made.equal(x.to(at::kBFloat16)));
  }
  return {y.detach(), grads[0], {sites[0].grad, sites[1].grad}};
}

TEST(Session, AnInputThatSeveralLinearsReadIsRoundedOnceWithTheSameBits) {
  const CpuKernelsScope table(aten_kernels());
  const Tensor x = at::randn({9, 16});
  const std::array<Tensor, 2> w = {at::randn({8, 16}).to(at::kBFloat16), at::randn({8, 16}).to(at::kBFloat16)};
  RoundedInput shared;
  const Linears alone = linears_of_a_text(x, w, nullptr), together = linears_of_a_text(x, w, &shared);
  EXPECT_TRUE(alone.y.equal(together.y));
  EXPECT_TRUE(alone.dx.equal(together.dx));
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(alone.dw[i].equal(together.dw[i])) << i;
}

TEST(Session, ASumThatIsRoundedWhereItIsMadeIsKeptSoForItsLinear) {
  const CpuKernelsScope table(fused_kernels());
  const Tensor x = at::randn({9, 16}), y = at::randn({9, 16}).to(at::kBFloat16), gate = at::randn({1, 16}),
               w = at::randn({8, 16}).to(at::kBFloat16);
  const RowIndex rows(at::zeros({9}, at::kInt));
  const auto run = [&](bool rounds, int64_t& saved) {
    RoundedInput shared;
    const RoundedScope scope(&shared);
    WeightSite site{w, at::full({8, 16}, NAN), true};
    const Tensor input = x.detach().requires_grad_(), anchor = at::zeros({}).requires_grad_();
    Tensor rounded, result;
    {
      const Tensor sum = gated_residual(input, y, gate, rows, true, rounds ? &rounded : nullptr);
      if (rounds) shared = RoundedInput(sum, rounded);
      result = linear(sum, site, nullptr, anchor, at::kBFloat16);
      saved = sum.use_count();
    }
    shared.clear();
    const auto grads = torch::autograd::grad({result}, {input, anchor}, {at::ones_like(result)}, false, false, true);
    return std::array<Tensor, 4>{result.detach(), grads[0], site.grad, rounded};
  };
  int64_t kept = 0, let_go = 0;
  const auto alone = run(false, kept), together = run(true, let_go);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(alone[i].equal(together[i])) << i;
  EXPECT_EQ(alone[1].scalar_type(), at::kFloat);
  EXPECT_EQ(together[3].scalar_type(), at::kBFloat16);
  EXPECT_LT(let_go, kept) << "the graph holds the sum";
}

TEST(Session, AThreadSeesNothingOfAnother) {
  const TargetScope target(tessera::target("sm_80", "test"));
  const LateScope late(Works{});
  session().site = "here";
  std::thread([] {
    EXPECT_FALSE(session().target);
    EXPECT_FALSE(session().late);
    EXPECT_EQ(session().site, "");
    bool done = false;
    session().later([&] { done = true; });
    EXPECT_TRUE(done) << "nothing is late on a thread without a scope";
  }).join();
  EXPECT_TRUE(session().late->empty());
}

TEST(Session, LateWorkIsDoneInItsOrderAndEachFreesWhatItHeldBeforeTheNext) {
  const LateScope late(Works{});
  const auto held = std::make_shared<int>(7);
  std::vector<int> order;
  session().later([&, kept = held] { order.push_back(*kept); });
  session().later([&] { order.push_back(static_cast<int>(held.use_count())); });
  session().run_late();
  EXPECT_EQ(order, (std::vector<int>{7, 1}));
  session().run_late();
  EXPECT_EQ(order.size(), 2u);
}

TEST(DeferredGradients, ASmallGradientHasMemoryOfItsOwnUntilTheScopeEnds) {
  WeightSite wanted = site(2, 2), other = site(2, 2);
  wanted.grad = other.grad = at::Tensor();
  DeferredGradients deferred({&wanted});
  {
    const DeferredGradients::Scope scope(deferred);
    EXPECT_EQ(session().deferred, &deferred);
    deferred.open(wanted), deferred.open(other);
    EXPECT_TRUE(wanted.grad.defined());
    EXPECT_FALSE(other.grad.defined()) << "it is not trained";
    wanted.grad.fill_(3), wanted.fresh = false;
  }
  EXPECT_EQ(session().deferred, nullptr);
  EXPECT_FALSE(wanted.grad.defined());
  wanted.grad = at::full({2, 2}, 1.0F), wanted.fresh = false;
  deferred.run();
  EXPECT_TRUE(at::equal(wanted.grad, at::full({2, 2}, 4.0F))) << "it is added to what is there";
}

TEST(LateGradients, HaveTheBitsOfThoseAtOnceAndAreThereOnlyWhenTheyAreRun) {
  WeightSite once = site(5, 4), late = site(5, 4);
  late.value = once.value;
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true), x = at::rand({3, 4}).requires_grad_(true);
  linear(x, once, nullptr, anchor).sum().backward();
  const at::Tensor dx = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  late.grad.fill_(7);
  const LateScope scope(Works{});
  linear(x, late, nullptr, anchor, at::kFloat, When::late).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), dx));
  EXPECT_TRUE(late.fresh) << "nothing was written";
  const double before = session().products.weight_grads;
  session().run_late();
  EXPECT_TRUE(at::equal(late.grad, once.grad));
  EXPECT_EQ(session().products.weight_grads - before, 2.0 * 3 * 4 * 5);
  session().run_late();
  EXPECT_TRUE(at::equal(late.grad, once.grad)) << "once";
}

TEST(LateGradients, WhereNobodySendsTheInputsGradientTheyAreComputedAtOnce) {
  WeightSite once = site(5, 4), late = site(5, 4);
  late.value = once.value;
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true), x = at::rand({3, 4});
  linear(x, once, nullptr, anchor).sum().backward();
  const LateScope scope(Works{});
  linear(x, late, nullptr, anchor, at::kFloat, When::late).sum().backward();
  EXPECT_TRUE(at::equal(late.grad, once.grad)) << "x needs no gradient";
}

/// Sites of a linear, an RMSNorm and a LayerNorm, whose gradients begin.
std::vector<WeightSite> sites_of_a_chain() {
  std::vector<WeightSite> sites(5);
  const std::vector<std::vector<int64_t>> shapes = {{24, 16}, {24}, {24}, {24}, {24}};
  for (size_t i = 0; i < sites.size(); ++i) {
    sites[i].value = at::randn(shapes[i], at::detail::createCPUGenerator(i + 1), at::kFloat);
    sites[i].grad = at::full(shapes[i], 5.0F), sites[i].fresh = true;
  }
  return sites;
}

/// Of a backward with the fused kernels: a bias, a norm's weight, and both of another norm.
TEST(LeftSums, AreAddedTogetherAtTheEndWithTheBitsOfThoseAtOnce) {
  const CpuKernelsScope fused(fused_kernels());
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true),
                   x = at::randn({130, 16}, at::detail::createCPUGenerator(9), at::kFloat);
  const auto run = [&](std::vector<WeightSite>& w) {
    const at::Tensor y = rms_norm(linear(x, w[0], &w[1], anchor), w[2], 1e-6, anchor);
    const at::Tensor z = layer_norm(y, w[3], w[4], 1e-6, anchor);
    z.backward(at::randn(z.sizes(), at::detail::createCPUGenerator(10), at::kFloat));
  };
  std::vector<WeightSite> once = sites_of_a_chain(), left = sites_of_a_chain();
  for (const bool again : {false, true}) {  // to gradients that begin, and to those that have values
    run(once);
    const SumsScope scope(std::vector<LeftSums>{});
    run(left);
    ASSERT_EQ(session().sums->size(), 4u);
    if (!again) EXPECT_TRUE(at::equal(left[1].grad, at::full({24}, 5.0F))) << "nothing is written yet";
    session().add_sums();
    EXPECT_TRUE(session().sums->empty());
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(left[i].grad, once[i].grad)) << i;
  }
}

TEST(LeftSums, AreAddedBeforeAnythingElseIsWrittenToTheirGradient) {
  const CpuKernelsScope fused(fused_kernels());
  std::vector<WeightSite> once = sites_of_a_chain(), left = sites_of_a_chain();
  const at::Tensor first = at::rand({3, 24}), second = at::rand({7, 24}), other = at::rand({2, 24});
  for (const at::Tensor& dy : {first, second}) bias_gradient(dy, once[1]);
  const SumsScope scope(std::vector<LeftSums>{});
  bias_gradient(first, left[1]), bias_gradient(other, left[2]);
  EXPECT_EQ(session().sums->size(), 2u);
  bias_gradient(second, left[1]);
  EXPECT_EQ(session().sums->size(), 1u) << "the first were added when the second came";
  session().add_sums();
  EXPECT_TRUE(at::equal(left[1].grad, once[1].grad));
}

const Kernels* counted_table = nullptr;
int gradients_added = 0;  ///< within the products of inputs' gradients
void counted_add(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) {
  ++gradients_added;
  counted_table->add_linear_input_gradient(dx, dy, w);
}

/// The gradient of x, which three linears read; somebody else holds those that meet, or does not.
at::Tensor gradient_of_shared_input(const at::Tensor& x, const std::array<at::Tensor, 3>& w,
                                    std::vector<at::Tensor>* held) {
  WeightSite q{w[0], at::zeros({5, 4})}, k{w[1], at::zeros({5, 4})}, v{w[2], at::zeros({5, 4})};
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true), input = x.detach().requires_grad_(true);
  const at::ScalarType type = w[0].scalar_type();
  at::Tensor passed, again;
  const at::Tensor of_q = linear(input, q, nullptr, anchor, type, When::at_once, &passed),
                   of_k = linear(passed, k, nullptr, anchor, type, When::at_once, &again),
                   of_v = linear(again, v, nullptr, anchor, type);
  if (held)
    for (const at::Tensor& meeting : {passed, again})
      meeting.register_hook([held](const at::Tensor& gradient) { held->push_back(gradient); });
  (of_q + of_k + of_v).sum().backward();
  return input.grad();
}

TEST(Linears, ThatReadOneTensorAddTheirGradientsWithinTheirProductsWhoeverHoldsThem) {
  for (const Kernels* table : {&cpu_kernels(), &aten_kernels(), &fused_kernels()})
    for (const auto& [of_x, of_w] :
         {std::pair(at::kFloat, at::kFloat), {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}}) {
      Kernels counting = *table;
      counted_table = table, counting.add_linear_input_gradient = counted_add, gradients_added = 0;
      const CpuKernelsScope scope(counting);
      const at::Tensor x = at::randn({67, 4}).to(of_x);
      const std::array<at::Tensor, 3> w = {at::randn({5, 4}).to(of_w), at::randn({5, 4}).to(of_w),
                                           at::randn({5, 4}).to(of_w)};
      std::vector<at::Tensor> held;
      const at::Tensor alone = gradient_of_shared_input(x, w, nullptr);
      EXPECT_EQ(gradients_added, 2) << table->name;
      const at::Tensor shared = gradient_of_shared_input(x, w, &held);
      EXPECT_TRUE(alone.equal(shared)) << table->name << " has other bits where a gradient is held";
      const auto of = [&](size_t i) { return at::ones({67, 5}).mm(w[i].to(at::kFloat)); };
      const double bound = of_x == at::kFloat ? 1e-5 : 3e-2;
      EXPECT_TRUE(at::allclose(alone.to(at::kFloat), of(0) + of(1) + of(2), bound, bound)) << table->name;
      ASSERT_EQ(held.size(), 2u);
      EXPECT_TRUE(at::allclose(held[0].to(at::kFloat), of(2), bound, bound))
          << table->name << " wrote to what another holds";
      EXPECT_TRUE(at::allclose(held[1].to(at::kFloat), of(1) + of(2), bound, bound)) << table->name;
    }
}

TEST(LateGradients, ALinearBehindGeluWritesItsInputsGradientOverItsInput) {
  WeightSite w = site(5, 4);
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true), leaf = at::rand({3, 4}).requires_grad_(true);
  const void *place = nullptr, *gradient = nullptr;
  at::Tensor y;
  {
    const at::Tensor x = leaf.clone();
    place = x.data_ptr();
    x.register_hook([&](const at::Tensor& dx) { gradient = dx.data_ptr(); });
    y = gelu_linear(x, w, nullptr, anchor);
  }
  y.sum().backward();
  EXPECT_EQ(gradient, place) << "something else holds the input while its gradient is computed";
}

}  // namespace
}  // namespace tessera::ops
