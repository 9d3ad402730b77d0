#pragma once
// Forward and backward of one unit, isolated: boundary inputs are detached leaves, the unit's graph is built (or
// rebuilt) and autograd::grad gives the gradients of boundary, conditioning and, into the buffer, of the weights.
// Block-isolated backward is bit-equal to the whole graph's. The executor and the measurement share this code, so
// tensors live as long in one as in the other.
#include "tessera/engine/context.h"
#include "tessera/engine/packed.h"
#include "tessera/net/unit.h"

namespace tessera::engine {

/// What a unit keeps of one micro-batch between its forward and its backward.
struct UnitRun {
  std::vector<Tensor> in;  ///< boundary inputs: leaves
  /// Where the graph ends, per boundary and conditioning output; empty when it is not kept. Edges, not tensors: the
  /// graph does not need the outputs' values, whoever runs next holds them as long as they matter.
  torch::autograd::edge_list stream_roots = {}, cond_roots = {};
  SiteResults results = {};                  ///< of a recomputed unit: what is not computed again
  std::vector<SavedStorage> offloaded = {};  ///< what goes to the host between forward and backward
  Packed kept = {}, away = {};               ///< what is in fewer bits meanwhile: on the device, on the host
};

/// Runs the unit and returns its outputs, detached. With `graph` run keeps the graph; without, only the inputs stay.
/// `cond` are the shared leaves.
net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run);

/// Gradients of run.in, given those of the outputs; adds conditioning gradients to `cond_grad` (one place a leaf, maybe
/// undefined) and frees the graph. `out_cond_grad`: gradients of conditioning this unit produced (the stem).
std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad, const Tensor& anchor);

/// What a unit's graph may save that is not its own: its inputs, conditioning, and the tables of the tokens.
std::vector<Tensor> foreign_tensors(const std::vector<Tensor>& in, const std::vector<Tensor>& cond,
                                    const net::Tokens& tokens);

/// Detached leaves that want gradients, sharing memory with `tensors`.
std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad);

}  // namespace tessera::engine
