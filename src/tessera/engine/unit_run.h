#pragma once
// Forward and backward of one unit, isolated: boundary inputs are detached leaves, the unit's graph is built (or
// rebuilt) and autograd::grad gives the gradients of boundary, conditioning and, into the buffer, of the weights.
// Block-isolated backward is bit-equal to the whole graph's. The executor and the measurement share this code, so
// tensors live as long in one as in the other.
#include "tessera/engine/context.h"
#include "tessera/net/unit.h"

namespace tessera::engine {

/// What a unit keeps of one micro-batch between its forward and its backward.
struct UnitRun {
  std::vector<Tensor> in;  ///< boundary inputs: leaves
  net::Flow out;           ///< outputs with their graph; empty when it is not kept
  bool input_grad = true;  ///< gradients of the boundary inputs are wanted
};

/// Runs the unit. With `graph` the outputs keep it in run.out and the returned flow is detached; without, only the
/// inputs stay. `cond` are the shared leaves.
net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run);

/// Gradients of run.in, given those of run.out; adds conditioning gradients to `cond_grad` (one place a leaf, maybe
/// undefined) and frees the graph. `out_cond_grad`: gradients of conditioning this unit produced (the stem).
std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad, const Tensor& anchor);

/// Detached leaves that want gradients, sharing memory with `tensors`.
std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad);

}  // namespace tessera::engine
