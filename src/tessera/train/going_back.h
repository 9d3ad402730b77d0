#pragma once
// A run that goes back to an earlier checkpoint leaves what lies beyond it in RUN/abandoned-N: nothing of the line that is
// left counts as newest, and nothing of it is lost.
//
//   leave_behind("runs/a", /*step=*/50, resume.beyond);
#include <cstdint>
#include <filesystem>
#include <vector>

namespace tessera::train {

/// Moves the checkpoints `beyond` and a copy of the lines of metrics.jsonl behind `step` (which the run then cuts off) to
/// the next RUN/abandoned-N and says so. A kill at any instant is mended by the next call, also with nothing beyond.
/// Throws UserError (disk).
void leave_behind(const std::filesystem::path& run, int64_t step, const std::vector<std::filesystem::path>& beyond);

}  // namespace tessera::train
