#pragma once
// The time that experts add to the predicted step: expert swaps, or the range of a gate's choices.
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

/// Rows of `plan`'s table of a step; none with one denoiser.
std::vector<SecondsRow> expert_rows(const Planned& planned);

/// Seconds of a step on average, expert swaps included.
double mean_step_seconds(const Planned& planned);

/// "experts" of `plan --json`; null with one denoiser. `mean_step_seconds` is the mean time of a step over the run,
/// expert swaps included.
nlohmann::ordered_json expert_json(const Planned& planned);

}  // namespace tessera::planning
