// Weight gradients that wait until the gradient of the input is under way.
#include "tessera/ops/late_gradients.h"

#include <gtest/gtest.h>

#include "tessera/ops/ops.h"
#include "tessera/ops/products.h"

namespace tessera::ops {
namespace {

WeightSite site(int64_t out, int64_t in) {
  WeightSite s;
  s.value = at::rand({out, in});
  s.grad = at::empty({out, in});
  s.fresh = true;
  return s;
}

TEST(LateGradients, HaveTheBitsOfThoseAtOnceAndAreThereOnlyWhenTheyAreRun) {
  WeightSite once = site(5, 4), late = site(5, 4);
  late.value = once.value;
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true), x = at::rand({3, 4}).requires_grad_(true);
  linear(x, once, nullptr, anchor).sum().backward();
  const at::Tensor dx = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  late.grad.fill_(7);
  const LateGradients scope;
  linear(x, late, nullptr, anchor, at::kFloat, When::late).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), dx));
  EXPECT_TRUE(late.fresh) << "nothing was written";
  const double before = product_flops().weight_grads;
  LateGradients::run();
  EXPECT_TRUE(at::equal(late.grad, once.grad));
  EXPECT_EQ(product_flops().weight_grads - before, 2.0 * 3 * 4 * 5);
  LateGradients::run();
  EXPECT_TRUE(at::equal(late.grad, once.grad)) << "once";
}

TEST(LateGradients, WhereNobodySendsTheInputsGradientTheyAreComputedAtOnce) {
  WeightSite once = site(5, 4), late = site(5, 4);
  late.value = once.value;
  const at::Tensor anchor = at::zeros({1}).requires_grad_(true), x = at::rand({3, 4});
  linear(x, once, nullptr, anchor).sum().backward();
  const LateGradients scope;
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
