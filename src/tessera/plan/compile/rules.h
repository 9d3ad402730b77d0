#pragma once
// The rules of a correct schedule, over all ranks and steps of a file or of compiled lists.
//
//   std::ifstream file("schedule.jsonl");
//   for (const Violation& v : check(file)) std::cerr << to_string(v) << "\n";
//
// [Note: the rules]
//   form       each line has its fields; sorted by rank, step and i; i counts without gaps; waits name earlier lines
//   residency  parameters are gathered before use (by happens-before, not only by line order), used in the slot they
//              were gathered into, released once after their last use, and never gathered twice
//   order      forward, loss, recompute, backward, reduce, norm, update: each after its inputs; what takes memory at its
//              place after the compute before it ([Note: memory at a place] of schedule.h)
//   arena      bytes of a slot, gradient slot or scratch are reused only after their last user is done
//   bytes      the bytes of an instruction match its unit's size and its collective
//   groups     members of a group run the same sequence of collectives; ranks interleave shared groups identically
//   messages   (order, groups) a send follows the compute of its message, a received message is used; sends match
//              receives between two ranks in order, and sent messages are freed
//   progress   no rank deadlocks in collectives
// "Before" is happens-before ([Note: happens-before] of clocks.h). A schedule ends before the next one of the same rank
// begins.
#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/plan/schedule_json.h"

namespace tessera::plan {

struct Violation {
  int line = 0;      ///< of the file, from 1
  std::string rule;  ///< a name of [Note: the rules]
  std::string text;  ///< rank, step and instruction, what was expected, what to do
};

/// Formats "line 12: [residency] rank 0, step 1, i 11 (forward blocks.3): ..."
std::string to_string(const Violation& violation);

/// All violations, by line; empty if the file satisfies the rules. A file without lines is a violation.
std::vector<Violation> check(std::istream& file);
std::vector<Violation> check(std::vector<Line> lines);
/// Throws UserError (input) for what cannot be read as a file of lines.
std::vector<Violation> check_file(const std::string& path);

}  // namespace tessera::plan
