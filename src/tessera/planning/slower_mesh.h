#pragma once
// Whether fewer ranks, or as many in the plain mesh, are predicted to be faster than the request's mesh.
//
//   planned.warn(slower_mesh(request, planned));    // "tp=4 is predicted to be slower than one rank ..."
#include <string>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// A sentence with both times where the same global batch takes less time on dp_shard over all ranks or on one rank alone;
/// else empty. A mesh is named only with a plan that was made for it and fits.
std::string slower_mesh(const PlanRequest& request, const Planned& planned);

}  // namespace tessera::planning
