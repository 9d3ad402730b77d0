#pragma once
// Joins files that every rank wrote a part of: FILE.rank-0, FILE.rank-1, ...
//
//   join_rank_files(out / "schedule.jsonl", world);           // on one rank, when all have written theirs
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::train {

/// FILE from its parts, which go. Throws UserError (disk) when it cannot be written.
void join_rank_files(const std::string& file, int world);
/// Parts of FILE that a killed run left. Those of a run in hand must not be there.
void remove_rank_files(const std::filesystem::path& file);
std::vector<std::string> lines_of(const std::string& file);

}  // namespace tessera::train
