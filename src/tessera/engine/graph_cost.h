#pragma once
// The memory of one unit's graph, measured on meta tensors: the part of measure.h that runs twice, for the graph that
// saves everything and for the lean one (ops/rebuild.h).
//
//   GraphMeasure whole = measure_graph(probe, /*lean=*/false), lean = measure_graph(probe, true);
#include "tessera/engine/unit_run.h"

namespace tessera::engine {

/// A unit and the inputs of its forward on one of the ranks that share the tokens. Borrows everything.
struct UnitProbe {
  const net::Unit& unit;
  Store& store;  ///< has this unit alone, bound
  const net::Tokens& tokens;
  const Parallel& parallel;
  const std::vector<Tensor>&stream, &cond;  ///< its inputs
  bool want_input, want_cond;               ///< whether the stream and cond need gradients
  bool first;                               ///< the model's first unit: its input is the batch
};

struct GraphMeasure {
  plan::GraphCost cost;
  int64_t grad_in = 0;
  std::vector<int64_t> grad_cond;
  std::vector<plan::Traffic> backward_traffic;
};

GraphMeasure measure_graph(const UnitProbe& probe, bool selective);

/// The forward with a graph, as the executor runs it.
net::Flow build_graph(const UnitProbe& probe, net::Context& ctx, const std::vector<Tensor>& cond, bool selective,
                      UnitRun& run);

/// Device bytes of tensors, with the allocator's rounding.
int64_t allocated_bytes(const std::vector<Tensor>& tensors);
/// The same, counting a storage that several tensors share once.
int64_t distinct_bytes(const std::vector<Tensor>& tensors);
/// Bytes of a saved tensor in each quantised form.
plan::Compact compact(const SavedStorage& saved);

}  // namespace tessera::engine
