#pragma once
// A run that goes back to an earlier checkpoint moves later checkpoints, exports and metrics lines to RUN/abandoned-N: a
// resume does not take them for the newest, and they are not lost.
//
//   leave_behind("runs/a", /*step=*/50, resume.beyond);
#include <cstdint>
#include <filesystem>
#include <vector>

namespace tessera::train {

/// Moves the checkpoints `beyond`, the exports behind `step`, and a copy of the lines of metrics.jsonl behind it (which the
/// run then cuts off) to the next RUN/abandoned-N and says so. A kill at any instant is mended by the next call, also with
/// nothing beyond. Throws UserError (disk).
void leave_behind(const std::filesystem::path& run, int64_t step, const std::vector<std::filesystem::path>& beyond);

}  // namespace tessera::train
