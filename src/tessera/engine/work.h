#pragma once
// Counts what each kind of unit computes, by kind of operator, by running its forward once on meta tensors under a
// context that makes nothing but shapes: products with their sizes, attention by site, bytes of everything else.
//
//   plan::WorkTable work = count_work(model.units(), batch);
//   work.at("block").products.size();                              // 10 in a Wan block
#include "tessera/net/model.h"
#include "tessera/plan/simulate/work.h"
#include "tessera/plan/states.h"

namespace tessera::engine {

/// `batch` has the shapes of the largest micro-batch; its values are not read. What a run with frozen weights leaves
/// out is not counted: gradients of frozen weights, and the backward of units before the first that is trained.
/// `compute`: plan.compute, the type of what blocks read and write but for what is added up over them.
plan::WorkTable count_work(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                           DType compute = DType::f32);

struct TensorShape {
  std::vector<int64_t> sizes;
  at::ScalarType type = at::kFloat;
};

/// What enters each unit on the way through the model; behind the last unit its result.
struct BoundaryShapes {
  std::vector<std::vector<TensorShape>> stream;  ///< units + 1
  std::vector<TensorShape> cond;                 ///< shared conditioning
};
/// Of this very batch.
BoundaryShapes boundary_shapes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch);

}  // namespace tessera::engine
