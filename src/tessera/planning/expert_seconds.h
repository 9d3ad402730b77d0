#pragma once
// What experts add to the predicted seconds of a step: the change of turns, or the range that a gate's choices span.
//
//   for (const SecondsRow& row : expert_rows(planned)) table.row(row.label, row.value, row.note);
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/planning/planning.h"

namespace tessera::planning {

struct SecondsRow {
  std::string label, value, note;
};

/// Lines of `plan`'s table of a step; none where one denoiser learns.
std::vector<SecondsRow> expert_rows(const Planned& planned);

/// "experts" of `plan --json`: null where one denoiser learns. `mean_step_seconds` of turns is what a step takes on
/// average over the run.
nlohmann::ordered_json expert_json(const Planned& planned);

}  // namespace tessera::planning
