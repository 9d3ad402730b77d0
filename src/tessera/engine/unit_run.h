#pragma once
// Forward and backward of one unit, isolated: boundary inputs are detached leaves, the unit's graph is built (or
// rebuilt) and autograd::grad gives the gradients of boundary, conditioning and, into the buffer, of the weights.
// Block-isolated backward is bit-equal to the whole graph's. The executor and the measurement share this code, so
// tensors live as long in one as in the other.
#include "tessera/engine/context.h"
#include "tessera/engine/saved.h"
#include "tessera/net/unit.h"

namespace tessera::engine {

/// A unit's state between the forward and the backward of a micro-batch.
struct UnitRun {
  std::vector<Tensor> in;  ///< boundary inputs: leaves
  /// The graph's roots, for each boundary and conditioning output; empty without a graph. They are edges, not tensors:
  /// the graph does not need the outputs' values, and the next unit holds them as long as it needs them.
  torch::autograd::edge_list stream_roots = {}, cond_roots = {};
  SiteResults results = {};                  ///< of a recomputed unit: results that are not recomputed
  std::vector<SavedStorage> offloaded = {};  ///< storages that are offloaded between forward and backward
  Packed kept = {}, away = {};               ///< quantised storages: kept on the device, offloaded
};

/// Runs the unit and returns its outputs, detached. With `graph`, `run` keeps the graph, else only the inputs. `cond`:
/// the shared leaves.
net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run);

/// Gradients of run.in, given those of the outputs; adds conditioning gradients to `cond_grad` (one entry for each
/// leaf, maybe undefined) and frees the graph. `out_cond_grad`: gradients of the conditioning that this unit made (the
/// stem).
std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad, const Tensor& anchor);

/// Tensors that a unit's graph may save and does not own: its inputs, conditioning, and the tables of the tokens.
std::vector<Tensor> foreign_tensors(const std::vector<Tensor>& in, const std::vector<Tensor>& cond,
                                    const net::Tokens& tokens);

/// Detached leaves that share memory with `tensors`.
std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad);

}  // namespace tessera::engine
