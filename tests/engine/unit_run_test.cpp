#include "tessera/engine/unit_run.h"

#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "tessera/torch_headers.h"

namespace tessera::engine {
namespace {

bool may_change_threads() { return c10::AutogradState::get_tls_state().get_multithreading_enabled(); }

/// y = sin(x), as a unit's graph, with `hook` run where its backward reaches x.
UnitRun sine(const std::function<void()>& hook) {
  UnitRun run;
  run.in = {at::ones({4}).requires_grad_()};
  const Tensor x = run.in[0].clone();
  x.register_hook([hook](const Tensor&) { hook(); });
  run.stream_roots = {torch::autograd::impl::gradient_edge(x.sin())};
  return run;
}

std::vector<Tensor> backward(UnitRun& run) {
  std::vector<Tensor> cond_grad;
  return run_backward(run, {at::ones({4})}, {}, {}, cond_grad, at::zeros({1}).requires_grad_());
}

TEST(UnitRun, ABackwardKeepsAllItsNodesOnTheThreadThatAsksForIt) {
  ASSERT_TRUE(may_change_threads()) << "LibTorch's default: nodes of a GPU run on a thread of its own";
  bool may = true;
  std::thread::id thread;
  UnitRun run = sine([&] { may = may_change_threads(), thread = std::this_thread::get_id(); });
  const std::vector<Tensor> gradients = backward(run);
  EXPECT_TRUE(at::allclose(gradients.at(0), at::ones({4}).cos()));
  EXPECT_FALSE(may);
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_TRUE(may_change_threads()) << "others' backwards are left as they were";
}

TEST(UnitRun, ABackwardThatFailsLeavesOthersAsTheyWere) {
  UnitRun run = sine([] { throw std::runtime_error("no gradient"); });
  EXPECT_THROW(backward(run), std::exception);
  EXPECT_TRUE(may_change_threads());
}

/// Returns x; its backward runs `act`, and notes its number.
struct Noted : torch::autograd::Function<Noted> {
  static inline std::vector<int64_t> order;
  static inline std::function<void()> act;
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, int64_t number) {
    ctx->saved_data["number"] = number;
    return x.clone();
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* ctx, std::vector<Tensor> gradients) {
    order.push_back(ctx->saved_data["number"].toInt());
    if (act) act();
    return {gradients[0], Tensor()};
  }
};

struct Results {
  std::vector<Tensor> gradients;
  std::vector<int64_t> order;
};

/// A graph of two results, whose nodes have several readers. `beside`: a leaf whose gradient nobody asks for, or undefined.
std::vector<Tensor> results(const Tensor& x, const Tensor& beside) {
  const Tensor a = Noted::apply(x.sin(), 1), b = Noted::apply(a * x.cos(), 2), c = Noted::apply(a.exp() + b * a, 3);
  const Tensor first = Noted::apply(b.tanh() * c, 4),
               second = Noted::apply(c * x + (beside.defined() ? beside * b : b), 5);
  return {first, second};
}

Results by_engine(const Tensor& x, const Tensor& beside, bool libtorchs) {
  Noted::order.clear();
  const Tensor ones = at::linspace(1, 2, 4), others = at::linspace(-1, 3, 4);
  const std::vector<Tensor> made = results(x, beside);
  if (libtorchs) return {torch::autograd::grad(made, {x}, {ones, others}), Noted::order};
  UnitRun run;
  run.in = {x};
  for (const Tensor& result : made) run.stream_roots.push_back(torch::autograd::impl::gradient_edge(result));
  std::vector<Tensor> cond_grad;
  return {run_backward(run, {ones, others}, {}, {}, cond_grad, at::zeros({1}).requires_grad_()), Noted::order};
}

TEST(UnitRun, ABackwardHasTheNodesOfLibTorchsInItsOrderAndToTheBit) {
  Noted::act = nullptr;
  for (const bool with_another : {false, true}) {
    const auto leaf = [](double from) { return at::linspace(from, 1, 4).requires_grad_(); };
    const Tensor beside = with_another ? leaf(0.5) : Tensor();
    const Results own = by_engine(leaf(-1), beside, false), libtorchs = by_engine(leaf(-1), beside, true);
    EXPECT_TRUE(at::equal(own.gradients.at(0), libtorchs.gradients.at(0)));
    EXPECT_EQ(own.order, libtorchs.order);
    EXPECT_EQ(own.order.size(), 5u);
    EXPECT_TRUE(!with_another || !beside.grad().defined());
  }
}

TEST(UnitRun, ABackwardOfKnownNodesIsOnItsThreadWithoutGraphsAndLeavesOthersAsTheyWereWhenItFails) {
  bool may = true, graph = true;
  Noted::act = [&] { may = may_change_threads(), graph = at::GradMode::is_enabled(); };
  by_engine(at::ones({4}).requires_grad_(), {}, false);
  EXPECT_FALSE(may);
  EXPECT_FALSE(graph);
  Noted::act = [] { throw std::runtime_error("no gradient"); };
  EXPECT_THROW(by_engine(at::ones({4}).requires_grad_(), {}, false), std::runtime_error);
  Noted::act = nullptr;
  EXPECT_TRUE(may_change_threads());
  EXPECT_TRUE(at::GradMode::is_enabled());
}

}  // namespace
}  // namespace tessera::engine
