#pragma once
// One step of an optimiser over a unit's shard: slice by slice, chunk by chunk on several threads with the same bits, with the
// sums over tensors and the whole matrices that some optimisers take.
//
//   update_unit(store, unit, adamw, {.step = 3, .lr = 1e-4, .scale = 1}, /*staged=*/{});
#include <functional>
#include <vector>

#include "tessera/engine/store/store.h"
#include "tessera/net/unit_update.h"
#include "tessera/ops/tensor.h"
#include "tessera/plan/whole_matrices.h"

namespace tessera::engine {

class Workers;

/// Adds the values of all ranks that update other elements of a buffer's tensors, in place ([Note: sums over tensors]).
using SumOver = std::function<void(int buffer, const Tensor& values)>;
/// Sends out[i] to member i of the ranks that update parts of a buffer's matrices, and receives in[i] from it.
using Exchange = std::function<void(int buffer, const std::vector<Tensor>& out, const std::vector<Tensor>& in)>;

/// What an update of whole matrices needs ([Note: whole matrices]).
struct WholeUpdate {
  const std::vector<plan::MatrixParts>* parts;  ///< by buffer of the unit; null: none
  Tensor work;                                  ///< bytes, plan::work_bytes() of all buffers at least
  Exchange exchange;                            ///< null: no other rank has a part
};

/// One step of the unit's shard, on this thread or on all of `workers`. `staged`: where a schedule has fetched offloaded
/// buffers. Null `sum`: no other rank has a part of a tensor.
void update_unit(Store& store, int unit, const net::UnitUpdate& update, const net::StepControl& control, Staged staged,
                 Workers* workers = nullptr, const SumOver& sum = {}, const WholeUpdate& whole = {});

}  // namespace tessera::engine
