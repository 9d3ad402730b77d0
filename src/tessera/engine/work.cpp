#include "tessera/engine/work.h"

#include <set>

#include "tessera/engine/signatures.h"

namespace tessera::engine {

using at::Tensor;

plan::WorkTable count_work(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                           DType compute) {
  return count_signatures(units, batch, compute).work;
}

BoundaryShapes boundary_shapes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch) {
  const auto shapes = [](const std::vector<Tensor>& tensors) {
    std::vector<TensorShape> result;
    for (const Tensor& t : tensors) result.push_back({t.sizes().vec(), t.scalar_type()});
    return result;
  };
  BoundaryShapes result;
  std::set<std::string> known;
  plan::UnitWork unused;
  plan::UnitSignatures no_sizes;
  net::Flow flow;
  for (const Tensor& t : batch.inputs) flow.stream.push_back(shape_of(t));
  for (const auto& unit : units) {
    result.stream.push_back(shapes(flow.stream));
    if (!known.insert(unit->spec().kind).second) continue;  // a unit of a known kind leaves the shapes as they are
    net::Flow out = count_unit(*unit, flow, batch.tokens, DType::f32, unused, no_sizes);  // boundaries are fp32
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  result.stream.push_back(shapes(flow.stream));
  result.cond = shapes(flow.cond);
  return result;
}

}  // namespace tessera::engine
