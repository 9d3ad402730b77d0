#include "tessera/plan/compile/rules.h"

#include <algorithm>
#include <functional>
#include <istream>
#include <set>
#include <tuple>
#include <unordered_map>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/mesh.h"
#include "tessera/plan/compile/checker.h"

namespace tessera::plan {

namespace {

bool needs_micro(Op op) {
  return op != Op::norm && op != Op::flush && op != Op::reduce_outer && op != Op::update && op != Op::gather_outer;
}

/// `left`: ranks that names may still give without listing them: such a name is short, whatever their number.
Group read_group(const std::string& name, size_t& left) {
  constexpr size_t kMostRanks = 1 << 13;
  Group group{name, "", {}};
  const size_t colon = name.find(':'), open = name.find('[');
  if (colon == std::string::npos || open == std::string::npos || open < colon || name.back() != ']') return group;
  group.axis = name.substr(colon + 1, open - colon - 1);
  const std::string_view ranks = std::string_view(name).substr(open + 1, name.size() - open - 2);
  const bool listed = ranks.find('+') == ranks.npos;
  group.ranks = read_ranks(ranks, listed ? kMostRanks : std::min(left, kMostRanks)).value_or(std::vector<int>());
  if (!listed) left -= group.ranks.size();
  const auto unsorted = std::adjacent_find(group.ranks.begin(), group.ranks.end(), std::greater_equal<>());
  return unsorted == group.ranks.end() ? group : Group{name, "", {}};
}

int intern(std::unordered_map<std::string, int>& ids, const std::string& name) {
  return ids.try_emplace(name, static_cast<int>(ids.size())).first->second;
}

bool has_backwards(const std::string& phase) { return phase.starts_with("train") || phase == "judged"; }

bool same_run(const Line& a, const Line& b) { return a.rank == b.rank && a.step == b.step; }

}  // namespace

Checker::Checker(std::vector<Line> lines, std::vector<Violation>& found) : lines_(std::move(lines)), found_(found) {
  for (size_t k = 0; k < lines_.size(); ++k)
    if (lines_[k].number == 0) lines_[k].number = static_cast<int>(k) + 1;
  for (Line& line : lines_)
    for (Comm& comm : line.in.comm)
      if (comm.group.empty()) comm.group = line.in.group;
  number();
}

void Checker::number() {
  std::unordered_map<std::string, int> unit_ids;
  for (Line& line : lines_) {
    line.in.unit = line.in.name.empty() ? -1 : intern(unit_ids, line.in.name);
    std::vector<int>& groups = group_.emplace_back();
    for (const Comm& comm : line.in.comm) {
      if (comm.group.empty()) continue;
      const int id = intern(group_ids_, comm.group);
      if (std::find(groups.begin(), groups.end(), id) == groups.end()) groups.push_back(id);
    }
    if (line.in.comm.empty() && !line.in.group.empty()) groups.push_back(intern(group_ids_, line.in.group));
  }
  units_.resize(unit_ids.size());
  for (const auto& [name, id] : unit_ids) units_[id] = name;
  groups_.resize(group_ids_.size());
  size_t left = 1 << 20;
  for (const auto& [name, id] : group_ids_) groups_[id] = read_group(name, left);
}

int Checker::group(const Comm& comm) const {
  const auto found = group_ids_.find(comm.group);
  return found == group_ids_.end() ? -1 : found->second;
}

std::string Checker::what(int k) const {
  std::string text(name(in(k).op));
  if (!in(k).name.empty()) text += " " + in(k).name;
  if (in(k).micro >= 0) text += ", micro-batch " + std::to_string(in(k).micro);
  return text;
}

std::string Checker::at(int k) const { return "line " + std::to_string(lines_[k].number) + " (" + what(k) + ")"; }

void Checker::report(int k, const std::string& rule, const std::string& text) {
  const Line& line = lines_[k];
  found_.push_back({line.number, rule,
                    "rank " + std::to_string(line.rank) + ", step " + std::to_string(line.step) + ", i " +
                        std::to_string(line.i) + " (" + what(k) + "): " + text});
}

bool Checker::check_form() {
  const int count = static_cast<int>(lines_.size());
  bool sorted = true;
  for (int k = 0; k < count; ++k) {
    check_fields(k);
    const Line& line = lines_[k];
    if (k == 0 || !same_run(lines_[k - 1], line)) {
      const bool ascending =
          k == 0 || std::pair(lines_[k - 1].rank, lines_[k - 1].step) < std::pair(line.rank, line.step);
      if (!ascending)
        report(k, "form", "comes after " + at(k - 1) + " of a later rank or step; sort the file by rank, step and i");
      sorted = sorted && ascending;
      if (line.i != 0)
        report(k, "form", "the first instruction of a rank's step has i 0; lines before this one are missing");
    } else if (line.i != lines_[k - 1].i + 1) {
      report(k, "form",
             "expected i " + std::to_string(lines_[k - 1].i + 1) + " after line " +
                 std::to_string(lines_[k - 1].number) + "; a line is missing or out of place here");
    }
  }
  if (!sorted) return false;
  resolve_waits();
  split_passes();
  return true;
}

void Checker::check_fields(int k) {
  const Instruction& instruction = in(k);
  if (needs_unit(instruction.op) && unit(k) < 0)
    report(k, "form", "names no unit; set \"unit\" to the one it works on");
  const bool of_a_micro =
      needs_micro(instruction.op) && (instruction.part == Part::none || instruction.part == Part::activations);
  if (of_a_micro && instruction.micro < 0) report(k, "form", "names no micro-batch; set \"micro\"");
  if (lines_[k].executed && lines_[k].t1 < lines_[k].t0) report(k, "form", "ends (t1) before it begins (t0)");
  if (groups_of(k).empty() != instruction.comm.empty())
    report(k, "groups",
           groups_of(k).empty() ? "communicates without a group; set \"group\""
                                : "has a group and no collective in \"comm\"");
  if (!instruction.comm.empty() && instruction.comm.front().group != instruction.group)
    report(k, "groups",
           "is of group '" + instruction.group + "', but its first collective is of '" +
               instruction.comm.front().group + "'");
  for (const int id : groups_of(k)) {
    const Group& g = groups_[id];
    if (g.ranks.empty())
      report(k, "groups", "group '" + g.name + "' is not of the form purpose:axis[rank,rank]");
    else if (!std::binary_search(g.ranks.begin(), g.ranks.end(), lines_[k].rank))
      report(k, "groups", "rank " + std::to_string(lines_[k].rank) + " is no member of its group " + g.name);
    for (const Comm& comm : instruction.comm)
      if (!g.ranks.empty() && group(comm) == id && comm.axis != g.axis)
        report(k, "groups", "collective on axis " + comm.axis + " in group " + g.name + "; expected axis " + g.axis);
  }
}

void Checker::resolve_waits() {
  const int count = static_cast<int>(lines_.size());
  waits_.resize(count);
  for (int begin = 0, end = 0; begin < count; begin = end) {
    std::unordered_map<int, int> line_of;
    for (end = begin; end < count && same_run(lines_[begin], lines_[end]); ++end)
      line_of.try_emplace(lines_[end].i, end);
    for (int k = begin; k < end; ++k)
      for (int wait : in(k).wait) {
        const auto found = line_of.find(wait);
        if (found == line_of.end())
          report(k, "form",
                 "waits for i " + std::to_string(wait) + ", which this rank's step does not have; its line is missing");
        else if (found->second >= k)
          report(k, "form", "waits for " + at(found->second) + ", which does not come before it; move that line up");
        if (found != line_of.end()) waits_[k].push_back(found->second);
      }
  }
}

// A pass ends where the phase changes; the experts of a step have one phase each, "train expert_1". Forward-only
// schedules run many times in a step: a repeated first gather, or the fetch of its shard, begins the next pass, because
// such a pass gathers a unit once for each micro-batch. One with backwards may gather it again for them.
void Checker::split_passes() {
  std::set<std::tuple<Op, int, int>> gathered;
  for (int k = 0; k < static_cast<int>(lines_.size()); ++k) {
    bool begins = k == 0 || !same_run(lines_[k - 1], lines_[k]) || lines_[k - 1].phase != lines_[k].phase;
    const bool first_hop =
        in(k).op == Op::fetch && in(k).part == Part::parameters && (in(k).lane == Lane::disk || in(k).host < 0);
    const std::tuple key{in(k).op, unit(k), in(k).micro};
    const bool brings = in(k).op == Op::gather || first_hop;
    const bool repeats = brings && !has_backwards(lines_[k].phase) && gathered.contains(key);
    begins = begins || repeats;
    if (begins) {
      passes_.push_back({lines_[k].rank, lines_[k].step, k, k});
      gathered.clear();
    }
    if (brings) gathered.insert(key);
    passes_.back().end = k + 1;
  }
}

namespace {

constexpr size_t kMostShown = 100;  // one fault can cause a line for each step

std::vector<Violation> sorted(std::vector<Violation> found) {
  std::stable_sort(found.begin(), found.end(), [](const Violation& a, const Violation& b) { return a.line < b.line; });
  if (found.size() > kMostShown) found.resize(kMostShown);
  return found;
}

/// `next` gives a line after another, false behind the last.
std::vector<Violation> check_texts(const std::function<bool(std::string&)>& next) {
  std::vector<Line> lines;
  std::vector<Violation> unreadable;
  std::string text;
  for (int number = 1; unreadable.size() <= kMostShown && next(text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      lines.push_back(parse_line(text));
      lines.back().number = number;
    } catch (const UserError& error) {
      unreadable.push_back({number, "form", error.what()});
    }
  }
  if (lines.empty() && unreadable.empty())
    return {{1, "form", "the file has no instruction; write it with 'tessera plan RECIPE --schedule FILE'"}};
  // Otherwise the remaining lines would be blamed for what the unreadable ones contain.
  return unreadable.empty() ? check(std::move(lines)) : sorted(std::move(unreadable));
}

}  // namespace

std::string to_string(const Violation& violation) {
  return "line " + std::to_string(violation.line) + ": [" + violation.rule + "] " + violation.text;
}

std::vector<Violation> check(std::istream& file) {
  return check_texts([&](std::string& line) { return static_cast<bool>(std::getline(file, line)); });
}

std::vector<Violation> check_file(const std::string& path) {
  ForeignLines file(path, "plan.check", "give a file that plan --schedule or train --trace-schedule wrote");
  return check_texts([&](std::string& line) { return file.next(line); });
}

std::vector<Violation> check(std::vector<Line> lines) {
  std::vector<Violation> found;
  Checker checker(std::move(lines), found);
  if (checker.check_form()) {
    check_steps(checker);
    check_groups(checker);
    check_progress(checker);
  }
  return sorted(std::move(found));
}

}  // namespace tessera::plan
