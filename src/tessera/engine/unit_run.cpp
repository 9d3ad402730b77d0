#include "tessera/engine/unit_run.h"

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "tessera/ops/session.h"

namespace tessera::engine {

namespace {

bool shares_memory(const Tensor& t, const std::vector<Tensor>& others) {
  return std::ranges::any_of(others, [&](const Tensor& other) { return t.is_alias_of(other); });
}

/// While it lives, all nodes of a backward run on the thread that asks for it. LibTorch else runs those of a GPU on a
/// thread of its own, where what is thread-local here (deferred weight gradients, rebuilt values, the clock of
/// collectives) is empty: weight gradients of a zero-bubble pipeline would be missing, and nothing would say so.
class OnThisThread {
 public:
  OnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); }
  ~OnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  OnThisThread(const OnThisThread&) = delete;

 private:
  const bool before_ = c10::AutogradState::get_tls_state().get_multithreading_enabled();
};

}  // namespace

std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad) {
  std::vector<Tensor> result;
  for (const Tensor& t : tensors) result.push_back(t.detach().requires_grad_(requires_grad && t.is_floating_point()));
  return result;
}

std::vector<Tensor> foreign_tensors(const std::vector<Tensor>& in, const std::vector<Tensor>& cond,
                                    const net::Tokens& tokens) {
  std::vector<Tensor> result = in;
  result.insert(result.end(), cond.begin(), cond.end());
  for (const Tensor& table : tokens.tables()) result.push_back(table);
  return result;
}

net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run) {
  const at::AutoGradMode mode(graph);
  net::Flow out = unit.forward(ctx, {run.in, cond});
  for (Tensor& t : out.stream)
    if (shares_memory(t, run.in)) t = t.clone();  // the unit's input may be offloaded while the next unit runs
  if (!graph) return out;
  net::Flow detached;
  for (const Tensor& t : out.stream) {
    run.stream_roots.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
    detached.stream.push_back(t.detach());
  }
  for (const Tensor& t : out.cond) {
    run.cond_roots.push_back(t.requires_grad() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
    detached.cond.push_back(t.detach());
  }
  return detached;
}

std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad,
                                 const Tensor& anchor) {
  torch::autograd::edge_list roots, wanted;
  torch::autograd::variable_list grads;
  const auto add_output = [&](const torch::autograd::edge_list& edges, std::vector<Tensor>& gradients) {
    for (size_t i = 0; i < edges.size(); ++i) {
      if (i >= gradients.size() || !gradients[i].defined() || !edges[i].is_valid()) continue;
      roots.push_back(edges[i]);
      grads.push_back(std::move(gradients[i]));
    }
  };
  const auto want = [&](const Tensor& t) {
    if (t.requires_grad()) wanted.push_back(torch::autograd::impl::gradient_edge(t));
  };
  add_output(run.stream_roots, out_grad);
  add_output(run.cond_roots, out_cond_grad);
  const size_t streams = run.in.size();
  for (const Tensor& t : run.in) want(t);
  for (const Tensor& t : cond) want(t);
  want(anchor);  // without it, autograd prunes nodes that lead to no other input

  std::vector<Tensor> found(wanted.size());
  const OnThisThread here;
  const ops::LateScope late(ops::Works{});
  if (!roots.empty() && !wanted.empty())
    found = torch::autograd::Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/false,
                                                                  /*create_graph=*/false, /*accumulate_grad=*/false,
                                                                  wanted);
  ops::session().run_late();  // of inputs that nobody sends
  roots.clear(), grads.clear();
  std::vector<Tensor> in_grad(streams);
  size_t at = 0;
  for (size_t i = 0; i < streams; ++i)
    if (run.in[i].requires_grad()) in_grad[i] = found[at++];
  for (size_t i = 0; i < cond.size(); ++i) {
    if (!cond[i].requires_grad()) continue;
    Tensor gradient = found[at++];
    if (!gradient.defined()) continue;
    if (cond_grad[i].defined())
      cond_grad[i].add_(gradient);
    else
      cond_grad[i] = gradient;
  }
  run = UnitRun{};
  return in_grad;
}

}  // namespace tessera::engine
