#pragma once
// Reads and writes schedule.jsonl: one instruction and its position in a run on each line.
//
//   std::vector<Line> lines;
//   append_lines(lines, compile_train(spec, plan, rank), rank, step);
//   std::cout << to_json(lines[0]) << "\n";      // {"rank":0,"step":1,"i":0,"phase":"train","op":"gather",...}
//   Line again = parse_line(text);               // throws UserError (input) naming the field
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// One line. `wait` counts like the file's "i", within (rank, step). A line names its unit but has no index for it, so
/// `in.unit` is -1 after reading.
struct Line {
  int number = 0;  ///< line of the file, from 1
  int rank = 0;
  int64_t step = 0;
  int i = 0;
  std::string phase;
  Instruction in;
  bool executed = false;  ///< has t0 and t1
  double t0 = 0, t1 = 0;  ///< seconds
};

std::string to_json(const Line& line);
Line parse_line(std::string_view text);

/// Appends the lines of one schedule; `i` continues from the last line of the same rank and step.
void append_lines(std::vector<Line>& lines, const Schedule& schedule, int rank, int64_t step);

/// The collectives of each group in order, each as its unit's instruction and what it sends; by group name.
std::map<std::string, std::vector<std::string>> group_sequences(const Schedule& schedule);
/// FNV-1a over the collectives of each group, in order. Members of a group compare it before first using the group.
std::map<std::string, uint64_t> group_hashes(const Schedule& schedule);

}  // namespace tessera::plan
