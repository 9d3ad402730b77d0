#pragma once
// Times of a machine's operators by signature: products and attention on grids of sizes, the others by kind, on normally
// distributed data.
//
//   measure_signatures(profile.device, [](const Call& call) { return seconds of one; });
#include <functional>

#include "tessera/plan/simulate/profile.h"

namespace tessera::tools {

using Call = std::function<void()>;
/// Seconds of one call where it runs again and again, the same on all ranks.
using Timer = std::function<double(const Call&)>;

/// Fills products, attentions, operators and dispatch. Calls the timer equally often on all ranks.
void measure_signatures(plan::DeviceProfile& device, const Timer& time);

}  // namespace tessera::tools
