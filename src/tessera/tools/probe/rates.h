#pragma once
// Rates of a machine's operators, each by the line through few and many: what plans take where no signature is near.
//
//   measure_rates(profile.device, *clock, sizes);
#include "tessera/plan/simulate/profile.h"
#include "tessera/tools/probe/clock.h"
#include "tessera/tools/probe/sizes.h"

namespace tessera::tools {

/// Fills gemm, attention, attention_backward, stream, bandwidth (the optimiser) and norm.
void measure_rates(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes);

/// A product that computes: for Clock::warm_up() and beside().
Call product_call(const ProductSize& size, at::ScalarType type);

}  // namespace tessera::tools
