#pragma once
// Reads metrics.jsonl when a run resumes: the lines that stay, and the events that a kill kept out of it.
//
//   const History history = read_history("runs/a/metrics.jsonl", /*done=*/100);
//   if (!history.has("checkpoint")) ...               // it was saved, and the run ended before it could write the line
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tessera::report {

struct History {
  int64_t bytes = 0;              ///< of the file; 0 where there is none
  int64_t begin = 0;              ///< of them, what lies before the lines that were read
  int64_t kept = 0;               ///< of them, up to the first line beyond step `done`, or one that was never finished
  bool open_end = false;          ///< the last kept line lacks its newline
  int64_t last_step = 0;          ///< of the kept `step` and `skip` lines; 0: there are none
  std::vector<int64_t> strays;    ///< numbers, from 1 behind `begin`, of kept lines that are no events
  std::set<std::string> at_done;  ///< types of the kept lines of step `done`
  std::set<std::string> samples;  ///< names of the files of the kept `sample` lines of step `done`
  std::set<int64_t> fault_times;  ///< of the kept `fault` lines that have one

  bool has(const std::string& type) const { return at_done.contains(type); }
};

/// One line for people about these lines; empty where there are none. `begin`: bytes before the first.
std::string told_strays(const std::vector<int64_t>& lines, int64_t begin = 0);

/// `step` and `skip` lines are in the order of their steps, so all lines after the first one beyond `done` are beyond it too,
/// and the place is found by halves: of a long file a megabyte or two around it are read, however many steps and ranks the
/// run has. Throws UserError (disk) when a file that is there cannot be read: nothing of it is known then.
History read_history(const std::filesystem::path& file, int64_t done);

}  // namespace tessera::report
