#pragma once
// Measures what running each unit costs, by running it on meta tensors with the code that will run
// ([Note: bytes by running on meta] in meter.h). A 14B block takes milliseconds and no memory.
//
//   plan::ModelSpec spec = measure(model.units(), batch, "wan2.1-t2v-1.3b", {});
#include "tessera/net/model.h"
#include "tessera/ops/kernels.h"
#include "tessera/plan/states.h"

namespace tessera::engine {

struct MeasureOptions {
  bool train = true;           ///< forward only otherwise
  bool input_grad = false;     ///< with gradients of the model's inputs
  Mesh mesh = {};              ///< its ranks may share the tokens: each number is the largest of theirs
  DType compute = DType::f32;  ///< plan.compute
  bool fp8 = false;            ///< plan.fp8
  bool gather_fp8 = false;     ///< plan.gather_fp8
  plan::Attention attention = plan::Attention::flash;  ///< plan.attention
  bool masked = false;                                 ///< targets have weights of their size
  ops::ErrorForm loss = {};                            ///< of a sample's rows: all but squares take memory of their own
  int rank = -1;  ///< a rank's own numbers in place of the largest; -1: no one rank's
};

/// `batch` has the shapes of the micro-batch with most tokens; its values are not read.
plan::ModelSpec measure(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, std::string name,
                        MeasureOptions options);

/// Whether a batch's memory may depend on more than its number of tokens: ranks share rows that have a grid, and hold
/// halos as large as its frames, or its rows, are wide.
bool has_halos(const net::Batch& batch, const Mesh& mesh);

/// Raises all bytes, of inputs, messages and units, to those of `batch`, which has another shape.
void cover(plan::ModelSpec& spec, const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
           MeasureOptions options);

// The largest cost of a unit over the ranks that share tokens: they may have different numbers of a row space's rows.

/// Raises each number of `cost` to that of `other`, the cost of the same unit with a batch of another shape. What is
/// sent stays that of `cost`.
void take_larger_shape(plan::Footprint& cost, const plan::Footprint& other);

/// The same for the cost on another rank. Throws InternalError if the two run collectives in different orders: such
/// ranks would wait for each other.
void take_larger(plan::Footprint& cost, const plan::Footprint& other);

}  // namespace tessera::engine
