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

// Counts the work of each kind of unit as count_work does (work.h), with the sizes of its products, attention and other
// operators.
//
//   const Counted counted = count_signatures(model.units(), batch);
//   counted.signatures.at("block").products[0].rows;

struct Counted {
  plan::WorkTable work;
  plan::SignatureTable signatures;
};

/// As count_work (work.h).
Counted count_signatures(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                         DType compute = DType::f32);

/// One unit's forward on meta tensors, whose work and sizes are added to `work` and `sizes`.
net::Flow count_unit(const net::Unit& unit, const net::Flow& flow, const net::Tokens& tokens, DType compute,
                     plan::UnitWork& work, plan::UnitSignatures& sizes);
/// A meta tensor of the same form.
at::Tensor shape_of(const at::Tensor& t);

}  // namespace tessera::engine
