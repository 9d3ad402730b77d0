#pragma once
// The low-rank pair of a linear whose weight is frozen: B A (LoRA), with a magnitude where it is DoRA (lora.h).
//
//   Adapter pair{.a = &a, .b = &b, .scale = alpha / rank};
#include "tessera/ops/dropout.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

/// The trained tensors of a site, late-bound like all weights ([Note: weights outside autograd] in weight.h): fp32, or
/// of 16 bits, as they are gathered; their gradients are fp32.
struct Adapter {
  WeightSite* a = nullptr;          ///< [r, in]
  WeightSite* b = nullptr;          ///< [out, r]
  WeightSite* magnitude = nullptr;  ///< [out]: DoRA. Then without dropout.
  double scale = 1;
  Dropout dropout = {};  ///< of the adapter's input
};

}  // namespace tessera::ops
