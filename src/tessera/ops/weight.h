#pragma once
// A weight as seen by the fused operators: late-bound views of the slot that a unit currently occupies.
// [Note: weights outside autograd] Weights are not autograd variables. An operator's node keeps a pointer to its
// WeightSite, reads the value from its current slot when it runs, and adds the weight gradient directly to the flat
// gradient buffer. So no graph holds a weight, slots may move between forward and backward, and nothing is copied.
// Every such node takes the unit's anchor, a leaf that requires grad: autograd::grad prunes nodes that lead to none of
// its inputs, so without the anchor weight gradients would silently be zero.
#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct WeightSite {
  at::Tensor value;     ///< view of the unit's slot; the store re-points it at every gather; undefined when released
  at::Tensor grad;      ///< view of the gradient buffer, fp32; undefined when frozen or outside backward
  bool fresh = true;    ///< nothing is accumulated yet: the first writer assigns, later ones add
  bool frozen = false;  ///< not trained
  std::array<int64_t, 2> blocks = {};  ///< [out, in] of a frozen value in blocks of 8-bit codes (ops/frozen.h)
};

}  // namespace tessera::ops
