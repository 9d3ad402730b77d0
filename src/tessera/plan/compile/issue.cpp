#include "tessera/plan/compile/issue.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tessera/base/mesh.h"

namespace tessera::plan {

bool sends_on_device(const Instruction& in) {
  const bool matrices = in.work > 0 && in.lane == Lane::compute;
  const bool numbers = in.op == Op::norm || in.op == Op::flush ||
                       (in.op == Op::update && !matrices);  // sums over tensors, a number each
  return !numbers && !in.comm.empty();
}

std::vector<int> issue_order(const Schedule& schedule) {
  std::vector<int> order;
  for (size_t i = 0; i < schedule.list.size(); ++i)
    if (sends_on_device(schedule.list[i])) order.push_back(static_cast<int>(i));
  return order;
}

namespace {

/// Where the last micro-batch begins; gathers for it may be before.
int last_micro_begin(const Schedule& schedule) {
  int begin = 0;
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    const Instruction& in = schedule.list[i];
    const bool ends = in.op == Op::backward || in.op == Op::idle || in.op == Op::release || in.op == Op::reduce;
    if (ends && in.micro >= 0 && in.micro + 1 < schedule.micros) begin = static_cast<int>(i) + 1;
  }
  return begin;
}

/// Whether all ranks have the instruction, in the same order of such.
bool joins_ranks(const Instruction& in) {
  return in.op == Op::gather || in.op == Op::reduce || in.op == Op::reduce_outer;
}

/// Where instructions [begin, end) belong in the forward and the backward of the last micro-batch over `units`, in the order of
/// the list: a gather to the visit at which it is issued, and before what that computes; a reduction behind it. Those of gathers
/// and reductions are the same on all ranks, whatever else their lists have.
std::vector<int> visits_of(const Schedule& schedule, int begin, int end, int units, int prefetch) {
  enum { gathers, computes, reduces, kinds };
  const std::vector<Instruction>& list = schedule.list;
  const auto backward = [&](int unit) { return 2 * units - 1 - unit; };
  const auto gathers_last = [&](const Instruction& in) {
    return in.op == Op::gather && in.micro + 1 == schedule.micros;
  };
  std::vector<int> places(static_cast<size_t>(end - begin), 0), next(places.size(), kinds * 2 * units);
  std::vector<int> left(static_cast<size_t>(units), 0);  // gathers of a unit: for its forward, its backward or both
  for (const Instruction& in : list)
    if (gathers_last(in)) ++left[static_cast<size_t>(in.unit)];
  // A unit with one has it for both where they are near, or has it from the micro-batch before.
  for (int u = 0; u < units; ++u)
    if (left[static_cast<size_t>(u)] == 1 && (schedule.micros == 1 || backward(u) - u <= prefetch + 1))
      left[static_cast<size_t>(u)] = 2;
  int before = 0;
  for (int i = 0; i < end; ++i) {
    const Instruction& in = list[static_cast<size_t>(i)];
    const bool forward = gathers_last(in) && left[static_cast<size_t>(in.unit)]-- > 1;
    if (i < begin || !joins_ranks(in)) continue;
    int& place = places[static_cast<size_t>(i - begin)];
    if (in.op == Op::gather)
      place = kinds * std::max(0, (forward ? in.unit : backward(in.unit)) - prefetch) + gathers;
    else
      place = kinds * backward(in.unit) + reduces;
    before = place = std::max(place, before);
  }
  for (size_t i = places.size(); i-- > 1;)
    next[i - 1] = joins_ranks(list[static_cast<size_t>(begin) + i]) ? places[i] : next[i];
  int visit = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const Instruction& in = list[static_cast<size_t>(begin) + i];
    if (in.op == Op::forward) visit = in.unit;
    if (in.op == Op::recompute || in.op == Op::backward || in.op == Op::idle) visit = backward(in.unit);
    if (joins_ranks(in)) continue;
    places[i] = std::min(std::max(kinds * visit + computes, i > 0 ? places[i - 1] : 0), next[i]);
  }
  return places;
}

}  // namespace

std::vector<SideBySide> issued_side_by_side(const std::vector<const Schedule*>& lists, int prefetch) {
  std::vector<SideBySide> order;
  std::vector<int> at(lists.size(), 0), begins, norms;
  std::vector<std::vector<int>> visits;
  const auto go_to = [&](size_t l, int end) {
    for (int& i = at[l]; i < end; ++i) order.push_back({l, i});
  };
  int units = 1;
  for (const Schedule* schedule : lists)
    for (const Instruction& in : schedule->list) units = std::max(units, in.unit + 1);
  for (size_t l = 0; l < lists.size(); ++l) {
    const std::vector<Instruction>& list = lists[l]->list;
    const auto norm =
        std::ranges::find_if(list, [](const Instruction& in) { return in.op == Op::norm && in.unit < 0; });
    norms.push_back(static_cast<int>(norm - list.begin()));
    begins.push_back(last_micro_begin(*lists[l]));
    visits.push_back(visits_of(*lists[l], begins[l], norms[l], units, prefetch));
    go_to(l, begins[l]);
  }
  while (at != norms) {
    size_t first = lists.size();
    const auto visit = [&](size_t l) { return visits[l][static_cast<size_t>(at[l] - begins[l])]; };
    for (size_t l = 0; l < lists.size(); ++l)
      if (at[l] < norms[l] && (first == lists.size() || visit(l) < visit(first))) first = l;
    go_to(first, at[first] + 1);
  }
  for (size_t l = 0; l < lists.size(); ++l)
    if (norms[l] < std::ssize(lists[l]->list)) go_to(l, norms[l] + 1);
  for (size_t l = 0; l < lists.size(); ++l) go_to(l, static_cast<int>(lists[l]->list.size()));
  return order;
}

Schedule joined_side_by_side(const std::vector<const Schedule*>& lists, int prefetch) {
  Schedule joined = *lists.at(0);
  joined.list.clear(), joined.arena = joined.host_arena = joined.disk_arena = 0;
  std::vector<std::vector<int>> places;
  for (const Schedule* schedule : lists) {
    places.emplace_back(schedule->list.size(), -1);
    joined.arena += schedule->arena, joined.micros = std::max(joined.micros, schedule->micros);
  }
  for (const auto& [l, i] : issued_side_by_side(lists, prefetch)) {
    Instruction in = lists[l]->list[static_cast<size_t>(i)];
    Waits wait;
    for (const int w : in.wait) wait.push_back(places[l][static_cast<size_t>(w)]);
    in.wait = std::move(wait);
    places[l][static_cast<size_t>(i)] = static_cast<int>(joined.list.size());
    joined.list.push_back(std::move(in));
  }
  return joined;
}

namespace {

/// The number of ranks that a group's name gives: "gather:dp_shard[0,1]".
int members_of(const std::string& group) {
  constexpr size_t kMostRanks = 1 << 17;
  const size_t open = group.find('[');
  const std::string_view ranks = std::string_view(group).substr(open + 1, group.size() - open - 2);
  return static_cast<int>(read_ranks(ranks, kMostRanks).value().size());
}

bool is_message(const Instruction& in) { return in.op == Op::send || in.op == Op::recv; }

/// A message that all members of a group take part in: the group, and how many it had before.
using Meeting = std::pair<std::string, int>;

struct RankState {
  const Schedule* schedule;
  std::vector<int> order;
  std::vector<int> before;       // in the order of issue; -1: the first, or none
  std::vector<int> together;     // likewise, the last one before it that is no message between stages
  std::vector<int> lane_before;  // on its lane; -1: the first
  std::vector<size_t> begun;     // by instruction: messages that have begun
  std::vector<char> done;
  std::map<std::string, int> meetings;  // by group: how many this rank has begun
  std::vector<Meeting> current;         // by instruction: its last message
};

class Devices {
 public:
  explicit Devices(const std::vector<IssuedList>& ranks) {
    for (const IssuedList& given : ranks) {
      RankState rank{given.schedule, given.order, {}, {}, {}, {}, {}, {}, {}};
      const size_t n = given.schedule->list.size();
      rank.before.assign(n, -1), rank.together.assign(n, -1), rank.lane_before.assign(n, -1);
      rank.begun.assign(n, 0), rank.done.assign(n, 0), rank.current.resize(n);
      int before = -1, together = -1;
      for (const int i : given.order) {
        const auto at = static_cast<size_t>(i);
        rank.before[at] = std::exchange(before, i);
        if (!is_message(given.schedule->list[at])) rank.together[at] = std::exchange(together, i);
      }
      std::array<int, kLaneCount> last;
      last.fill(-1);
      for (size_t i = 0; i < n; ++i)
        rank.lane_before[i] =
            std::exchange(last[static_cast<size_t>(given.schedule->list[i].lane)], static_cast<int>(i));
      ranks_.push_back(std::move(rank));
    }
  }

  std::string run() {
    while (step()) {
    }
    std::string stuck;
    for (size_t r = 0; r < ranks_.size(); ++r) stuck += describe(r);
    return stuck;
  }

 private:
  bool step() {
    bool moved = false;
    for (RankState& rank : ranks_)
      for (size_t i = 0; i < rank.done.size(); ++i)
        if (!rank.done[i]) moved = advance(rank, i) || moved;
    return moved;
  }

  bool advance(RankState& rank, size_t i) {
    const Instruction& in = rank.schedule->list[i];
    if (!ready(rank, i)) return false;
    if (!sends_on_device(in)) return rank.done[i] = 1, true;
    bool moved = false;
    for (; rank.begun[i] <= in.comm.size(); moved = true) {
      if (rank.begun[i] > 0 && met_[rank.current[i]] < members_of(rank.current[i].first)) return moved;
      if (rank.begun[i] == in.comm.size()) return rank.done[i] = 1, true;
      const std::string& group = in.comm[rank.begun[i]++].group;
      rank.current[i] = {group, rank.meetings[group]++};
      ++met_[rank.current[i]];
    }
    return moved;
  }

  bool ready(const RankState& rank, size_t i) const {
    const auto is_done = [&](int j) { return j < 0 || rank.done[static_cast<size_t>(j)]; };
    for (const int w : rank.schedule->list[i].wait)
      if (!is_done(w)) return false;
    const int before = rank.before[i];
    const bool begun = before < 0 || rank.begun[static_cast<size_t>(before)] ==
                                         rank.schedule->list[static_cast<size_t>(before)].comm.size();
    return is_done(rank.lane_before[i]) && is_done(rank.together[i]) && begun;
  }

  /// What a rank is in, or has not begun because of the order.
  std::string describe(size_t r) const {
    const RankState& rank = ranks_[r];
    for (const int i : rank.order) {
      const auto at = static_cast<size_t>(i);
      if (rank.done[at]) continue;
      const Instruction& in = rank.schedule->list[at];
      const bool inside = rank.begun[at] > 0;
      return "rank " + std::to_string(r) + (inside ? " is in " : " has not begun ") + std::string(name(in.op)) + " " +
             in.name + " (i " + std::to_string(i) + ") on " + (inside ? rank.current[at].first : in.group.text()) +
             "\n";
    }
    return "";
  }

  std::vector<RankState> ranks_;
  std::map<Meeting, int> met_;  // members that have begun it
};

}  // namespace

std::string issue_deadlock(const std::vector<IssuedList>& ranks) { return Devices(ranks).run(); }

}  // namespace tessera::plan
