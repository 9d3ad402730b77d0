#pragma once
// A run that goes back to an earlier checkpoint moves later checkpoints, exports and metrics lines to RUN/abandoned-N: a
// resume does not take them for the newest, and they are not lost.
//
//   leave_behind("runs/a", /*step=*/50, resume.beyond);
//
// Joins files that every rank wrote a part of: FILE.rank-0, FILE.rank-1, ...
//
//   join_rank_files(out / "schedule.jsonl", world);           // on one rank, when all have written theirs
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::train {

/// Moves the checkpoints `beyond`, the exports behind `step`, and a copy of the lines of metrics.jsonl behind it (which the
/// run then cuts off) to the next RUN/abandoned-N and says so. A kill at any instant is mended by the next call, also with
/// nothing beyond. Throws UserError (disk).
void leave_behind(const std::filesystem::path& run, int64_t step, const std::vector<std::filesystem::path>& beyond);

/// FILE from its parts, which go. Throws UserError (disk) when it cannot be written.
void join_rank_files(const std::string& file, int world);
/// Parts of FILE that a killed run left. Those of a run in hand must not be there.
void remove_rank_files(const std::filesystem::path& file);
std::vector<std::string> lines_of(const std::string& file);

}  // namespace tessera::train
