#pragma once
// The low-rank adapter B A of a frozen linear (LoRA), with a magnitude for DoRA (lora.h).
//
//   Adapter pair{.a = &a, .b = &b, .scale = alpha / rank};
#include "tessera/ops/dropout.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

/// The trained tensors of a site, late-bound like all weights ([Note: weights outside autograd] in weight.h): fp32, or
/// 16-bit if gathered so; their gradients are fp32.
struct Adapter {
  WeightSite* a = nullptr;          ///< [r, in]
  WeightSite* b = nullptr;          ///< [out, r]
  WeightSite* magnitude = nullptr;  ///< [out], for DoRA; excludes dropout
  double scale = 1;
  Dropout dropout = {};  ///< on the adapter's input
};

}  // namespace tessera::ops
