#pragma once
// Counts the work of each kind of unit by kind of operator: products with their sizes, attention by site, bytes of
// everything else. It runs the unit's forward once on meta tensors under a context that computes only shapes.
//
//   plan::WorkTable work = count_work(model.units(), batch);
//   work.at("block").products.size();                              // 10 in a Wan block
#include "tessera/net/model.h"
#include "tessera/plan/simulate/work.h"
#include "tessera/plan/states.h"

namespace tessera::engine {

/// `batch` has the shapes of the largest micro-batch; its values are not read. Gradients of frozen weights and the
/// backward of units before the first trained one do not count. `compute`: plan.compute, the dtype of what blocks read
/// and write, except for the residual stream.
plan::WorkTable count_work(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                           DType compute = DType::f32);

struct TensorShape {
  std::vector<int64_t> sizes;
  at::ScalarType type = at::kFloat;
};

/// The shapes of each unit's inputs; after the last unit, those of its result.
struct BoundaryShapes {
  std::vector<std::vector<TensorShape>> stream;  ///< units + 1
  std::vector<TensorShape> cond;                 ///< shared conditioning
};
/// The shapes for this batch.
BoundaryShapes boundary_shapes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch);

}  // namespace tessera::engine
