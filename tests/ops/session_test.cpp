// What a thread's operators are asked beside their operands.
#include "tessera/ops/session.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

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
