#pragma once
// Counts the work of each kind of unit as count_work does (work.h), with the sizes of its products, attention and other
// operators.
//
//   const Counted counted = count_signatures(model.units(), batch);
//   counted.signatures.at("block").products[0].rows;
#include "tessera/net/model.h"
#include "tessera/plan/simulate/signatures.h"
#include "tessera/plan/simulate/work.h"
#include "tessera/plan/states.h"

namespace tessera::engine {

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
