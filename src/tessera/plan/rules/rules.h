#pragma once
// The rules every schedule keeps (design.md, section 3), over all ranks and steps of a file or of compiled lists.
//
//   std::ifstream file("schedule.jsonl");
//   for (const Violation& v : check(file)) std::cerr << to_string(v) << "\n";
//
// [Note: the rules]
//   form       each line has its fields; sorted by rank, step and i; i counts without gaps; waits name earlier lines
//   residency  parameters are gathered before they are used (in the order of waits and lanes, not only of lines), in
//              the slot they were gathered into, released once after their last use, and never gathered twice
//   order      forward, loss, recompute, backward, reduce, norm, update: each after what it needs
//   arena      bytes of a slot, gradient slot or scratch are used again only after their last user is done
//   bytes      what an instruction moves agrees with its unit's size and with its collective
//   groups     members of a group see the same sequence of collectives; two ranks interleave shared groups alike
//   messages   (order, groups) a send follows what made it, a recv is used; sends match receives between two ranks in
//              order, and what was sent is freed
//   progress   with collectives that meet, every rank comes to its end
// "Before" is happens-before: instructions of a lane run one after the other, and a wait orders across lanes. A
// schedule ends before the next one of the same rank begins.
#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/plan/rules/violation.h"
#include "tessera/plan/schedule_json.h"

namespace tessera::plan {

/// "line 12: [residency] rank 0, step 1, i 11 (forward blocks.3): ..."
std::string to_string(const Violation& violation);

/// All violations, by line; empty when the file keeps the rules. A file without a line is a violation.
std::vector<Violation> check(std::istream& file);
std::vector<Violation> check(std::vector<Line> lines);

}  // namespace tessera::plan
