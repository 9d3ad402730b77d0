#include "tessera/engine/unit_run.h"

namespace tessera::engine {

std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad) {
  std::vector<Tensor> result;
  for (const Tensor& t : tensors) result.push_back(t.detach().requires_grad_(requires_grad && t.is_floating_point()));
  return result;
}

net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run) {
  const at::AutoGradMode mode(graph);
  net::Flow out = unit.forward(ctx, {run.in, cond});
  if (!graph) return out;
  net::Flow detached;
  for (const Tensor& t : out.stream) detached.stream.push_back(t.detach());
  for (const Tensor& t : out.cond) detached.cond.push_back(t.detach());
  run.out = std::move(out);
  return detached;
}

std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad,
                                 const Tensor& anchor) {
  std::vector<Tensor> outputs, grads, inputs;
  const auto add_output = [&](const std::vector<Tensor>& values, std::vector<Tensor>& gradients) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (i >= gradients.size() || !gradients[i].defined() || !values[i].requires_grad()) continue;
      outputs.push_back(values[i]);
      grads.push_back(std::move(gradients[i]));
    }
  };
  add_output(run.out.stream, out_grad);
  add_output(run.out.cond, out_cond_grad);
  const size_t streams = run.in.size();
  for (const Tensor& t : run.in)
    if (t.requires_grad()) inputs.push_back(t);
  for (const Tensor& t : cond)
    if (t.requires_grad()) inputs.push_back(t);
  if (anchor.requires_grad()) inputs.push_back(anchor);  // or nodes that lead to no input are pruned

  std::vector<Tensor> found;
  if (!outputs.empty() && !inputs.empty()) {
    found = torch::autograd::grad(outputs, inputs, grads, /*retain_graph=*/false, /*create_graph=*/false,
                                  /*allow_unused=*/true);
  }
  outputs.clear(), grads.clear();
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
