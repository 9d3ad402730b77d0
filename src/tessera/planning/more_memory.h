#pragma once
// Prices more memory: plans the same job with a larger device or host budget, starting from the plan that was found.
//
//   planned.prices = memory_prices(request, planned);
//   more_memory(planned);              // "+8 GiB of device memory: -2 %; +16 GiB of host memory: -6 %; host memory binds"
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// Steps with 8 GiB more device memory a rank (a quarter more of a small device) and 16 GiB more host memory a node (a
/// quarter more of a small budget). None for a plan that does not fit, that was written by hand, or that is as fast as
/// with all the memory there could be.
std::vector<MemoryPrice> memory_prices(const PlanRequest& request, const Planned& planned);

/// The plan's prices in a line; empty without them.
std::string more_memory(const Planned& planned);

}  // namespace tessera::planning
