#pragma once
// Plans every mesh with the request's number of ranks and sorts them by step time (tessera plan --layouts).
//
//   const Layouts found = find_layouts(plan_request(recipe, job, shapes, mesh, prompts));
//   std::fputs(layouts_text(found).c_str(), stdout);
#include <string>
#include <vector>

#include "tessera/plan/search/layouts.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

struct Layouts {
  int world = 1;
  int64_t global_batch = 1, micro_batch = 1;
  std::vector<plan::Layout> list;  ///< never empty, fastest first
};

/// Throws UserError (usage) if no mesh of that many ranks is valid for the model.
Layouts find_layouts(const PlanRequest& request);

/// As a table for a terminal, limited to the first ones.
std::string layouts_text(const Layouts& found);
/// {"ranks","global_batch","micro_batch","layouts":[{"mesh","fits","seconds","peak_bytes","host_bytes","plan"}]}: all.
std::string layouts_json(const Layouts& found);

// Prices more memory: plans the same job with a larger device or host budget, starting from the plan that was found.
//
//   planned.prices = memory_prices(request, planned);
//   more_memory(planned);              // "+8 GiB of device memory: -2 %; +16 GiB of host memory: -6 %; host memory binds"

/// Steps with 8 GiB more device memory a rank (a quarter more of a small device) and 16 GiB more host memory a node (a
/// quarter more of a small budget). None for a plan that does not fit, that was written by hand, or that is as fast as
/// with all the memory there could be.
std::vector<MemoryPrice> memory_prices(const PlanRequest& request, const Planned& planned);

/// The plan's prices in a line; empty without them.
std::string more_memory(const Planned& planned);

// A plan as one self-contained HTML page: the lanes of a step above the memory curve, the parts of memory and time, and
// the alternatives.
//
//   checkpoint::write_text("plan.html", plan_page(planned));

std::string plan_page(const Planned& planned);

}  // namespace tessera::planning
