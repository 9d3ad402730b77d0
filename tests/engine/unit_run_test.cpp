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

}  // namespace
}  // namespace tessera::engine
