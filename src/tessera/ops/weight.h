#pragma once
// A weight as the fused operators see it: late-bound views that follow the slot a unit currently occupies.
// [Note: weights outside autograd] Weights are not autograd variables. An operator's node keeps a pointer to its
// WeightSite, reads the value from wherever the slot is when it runs, and adds the weight gradient straight into the
// flat gradient buffer. So no graph holds a weight, slots may move between forward and backward, nothing is copied.
// Every such node takes the unit's anchor, a leaf that requires grad: autograd::grad prunes nodes that lead to none of
// its inputs, and without the anchor weight gradients would silently be zero.
#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct WeightSite {
  at::Tensor value;     ///< view of the unit's slot; re-pointed by the store at every gather, undefined when released
  at::Tensor grad;      ///< view of the gradient buffer, fp32; undefined when frozen or outside backward
  bool fresh = true;    ///< the gradient holds nothing yet: the first writer assigns, later ones add
  bool frozen = false;  ///< nobody trains it
  std::array<int64_t, 2> blocks = {};  ///< [out, in] of a frozen value that is blocks of 8-bit codes (ops/frozen.h)
};

}  // namespace tessera::ops
