#pragma once
// The input of all rules: lines with units and groups as numbers, and the list of violations. Internal to the rules.
//
//   Checker checker(lines, violations);
//   checker.report(k, "residency", "uses parameters that were released at " + checker.at(j));
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/plan/schedule_json.h"

namespace tessera::plan {

/// A communicator, parsed from its name: "gather:dp_shard[0,1]".
struct Group {
  std::string name, axis;
  std::vector<int> ranks;  // sorted; empty if the name cannot be parsed
};

/// The lines [begin, end): one run of one schedule on one rank.
struct Pass {
  int rank;
  int64_t step;
  int begin, end;
};

struct Violation;  // of rules.h

/// Whether lines of the operation name a unit.
inline bool needs_unit(Op op) { return op != Op::loss && op != Op::finish && op != Op::norm && op != Op::flush; }

class Checker {
 public:
  Checker(std::vector<Line> lines, std::vector<Violation>& found);

  const std::vector<Line>& lines() const { return lines_; }
  const Instruction& in(int k) const { return lines_[k].in; }  ///< its unit is an index of units()
  int unit(int k) const { return in(k).unit; }                 ///< -1 for none
  /// Groups of the collectives of line k, in order and without repetition.
  const std::vector<int>& groups_of(int k) const { return group_[k]; }
  /// The group of one collective.
  int group(const Comm& comm) const;
  const std::vector<std::string>& units() const { return units_; }
  const std::vector<Group>& groups() const { return groups_; }
  /// Lines that k waits for, as indices of lines().
  const std::vector<int>& waits(int k) const { return waits_[k]; }
  const std::vector<Pass>& passes() const { return passes_; }

  std::string what(int k) const;  ///< "forward blocks.3, micro-batch 0"
  std::string at(int k) const;    ///< "line 12 (forward blocks.3, micro-batch 0)"
  void report(int k, const std::string& rule, const std::string& text);

  /// False if the lines are not sorted by rank and step; then no other rule can be checked.
  bool check_form();

 private:
  void number();  // assigns numbers to units and groups
  void check_fields(int k);
  void resolve_waits();
  void split_passes();

  std::vector<Line> lines_;
  std::vector<std::vector<int>> group_;
  std::unordered_map<std::string, int> group_ids_;
  std::vector<std::string> units_;
  std::vector<Group> groups_;
  std::vector<std::vector<int>> waits_;
  std::vector<Pass> passes_;
  std::vector<Violation>& found_;
};

/// One family of rules each; they require check_form() to have passed.
void check_steps(Checker& checker);     // step.cpp: residency, order, arena, bytes
void check_groups(Checker& checker);    // collectives.cpp: groups
void check_progress(Checker& checker);  // likewise: progress

}  // namespace tessera::plan
