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

}  // namespace tessera::planning
