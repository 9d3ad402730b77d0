#pragma once
// report.html of a run, from what its folder holds: the same page at the end of training, of a stopped run, and of
// several runs side by side.
//
//   write_run_report({"runs/a"}, "runs/a/report.html");
//   write_run_report({"runs/a", "runs/b"}, "compare.html");
#include <filesystem>
#include <vector>

namespace tessera::report {

/// One run: curves, memory, lanes of every rank, frames of source, reconstruction and newest sample of each prompt,
/// recipe and plan. Several: their curves over one another and their numbers in a table, labelled by folder.
/// Throws UserError (input) when one is no run, (disk) when `file` cannot be written.
void write_run_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& file);

}  // namespace tessera::report
