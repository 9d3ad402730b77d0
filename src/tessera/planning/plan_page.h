#pragma once
// A plan as a picture: one HTML page that needs nothing else. Lanes over the step with the memory curve under them,
// where the bytes and the seconds go, and what else was considered.
//
//   checkpoint::write_text("plan.html", plan_page(planned));
#include <string>

#include "tessera/planning/planning.h"

namespace tessera::planning {

std::string plan_page(const Planned& planned);

}  // namespace tessera::planning
