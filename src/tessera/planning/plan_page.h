#pragma once
// A plan as one self-contained HTML page: the lanes of a step above the memory curve, the parts of memory and time, and
// the alternatives.
//
//   checkpoint::write_text("plan.html", plan_page(planned));
#include <string>

#include "tessera/planning/planning.h"

namespace tessera::planning {

std::string plan_page(const Planned& planned);

}  // namespace tessera::planning
