#pragma once
// What the graph of one unit takes, measured on meta tensors: the part of measure.h that is done for the graph that
// holds everything and for the lean one.
//
//   GraphMeasure whole = measure_graph(probe, /*lean=*/false), lean = measure_graph(probe, true);
#include "tessera/engine/unit_run.h"

namespace tessera::engine {

/// A unit ahead of its forward, as the last rank that shares the tokens runs it. Borrows all it names.
struct UnitProbe {
  const net::Unit& unit;
  Store& store;  ///< of this unit alone, bound
  const net::Tokens& tokens;
  const Parallel& parallel;
  const std::vector<Tensor>&stream, &cond;  ///< what enters it
  bool want_input, want_cond;               ///< gradients of these
  bool first;                               ///< of the model: its input is the batch
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

/// Device bytes of tensors, as they are allocated.
int64_t allocated_bytes(const std::vector<Tensor>& tensors);
/// The same, of storages that several may share.
int64_t distinct_bytes(const std::vector<Tensor>& tensors);
/// What a saved tensor takes in the lossy forms.
plan::Compact compact(const SavedStorage& saved);

}  // namespace tessera::engine
