// All members of a group run the same sequence of its collectives, and ranks that share several groups interleave them
// in the same order. Communicators are queues: two ranks that enter A then B and B then A deadlock. Messages between
// stages match send to receive in order; they have lanes of their own and need no common interleaving. Then all ranks are
// simulated, to see that they come to the end.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>

#include "tessera/plan/compile/checker.h"

namespace tessera::plan {

namespace {

using Groups = std::set<int>;

class GroupRules {
 public:
  explicit GroupRules(Checker& checker) : checker_(checker) {
    for (int k = 0; k < static_cast<int>(checker.lines().size()); ++k) {
      sequence_[checker.lines()[k].rank];  // ranks without collectives count too
      if (checker.groups_of(k).empty()) continue;
      sequence_[checker.lines()[k].rank].push_back(k);
      groups_[checker.lines()[k].rank].insert(checker.groups_of(k).begin(), checker.groups_of(k).end());
      if (is_message(k)) messages_.insert(checker.groups_of(k).begin(), checker.groups_of(k).end());
    }
  }

  void run() {
    for (int g = 0; g < static_cast<int>(checker_.groups().size()); ++g) complete(g);
    for (int g = 0; g < static_cast<int>(checker_.groups().size()); ++g) alike({g});
    std::set<Groups> shared;
    for (auto a = groups_.begin(); a != groups_.end(); ++a)
      for (auto b = std::next(a); b != groups_.end(); ++b) {
        Groups common;
        std::set_intersection(a->second.begin(), a->second.end(), b->second.begin(), b->second.end(),
                              std::inserter(common, common.end()));
        std::erase_if(common, [&](int g) { return messages_.contains(g); });
        if (common.size() > 1) shared.insert(common);
      }
    for (const Groups& groups : shared) alike(groups);
  }

 private:
  /// Every member named by the group exists in the file.
  void complete(int g) {
    const Group& group = checker_.groups()[g];
    const auto user = std::find_if(groups_.begin(), groups_.end(), [&](const auto& r) { return r.second.contains(g); });
    if (user == groups_.end()) return;
    for (int rank : group.ranks) {
      if (groups_.contains(rank) && groups_.at(rank).contains(g)) continue;
      const std::vector<int> own = filtered(user->first, {g});
      checker_.report(own.front(), "groups",
                      "rank " + std::to_string(rank) + " is a member of " + group.name +
                          (sequence_.contains(rank) ? " and never takes part in it" : " and has no line in the file") +
                          "; write the instructions of all ranks");
      different_.insert(g);
    }
  }

  std::vector<int> filtered(int rank, const Groups& groups) const {
    std::vector<int> result;
    for (int k : sequence_.at(rank))
      if (std::any_of(checker_.groups_of(k).begin(), checker_.groups_of(k).end(),
                      [&](int group) { return groups.contains(group); }))
        result.push_back(k);
    return result;
  }

  /// The collectives of line k that concern groups.
  std::vector<Comm> within(int k, const Groups& groups) const {
    std::vector<Comm> result;
    for (const Comm& comm : checker_.in(k).comm)
      if (groups.contains(checker_.group(comm))) result.push_back(comm);
    return result;
  }

  bool equal(int a, int b, const Groups& groups) const {
    // The bytes of a flush are the rank's own; its group traffic is in `comm`.
    const bool bytes = checker_.in(a).op == Op::flush || checker_.in(a).bytes == checker_.in(b).bytes;
    const bool alike = bytes && checker_.unit(a) == checker_.unit(b) &&
                       checker_.lines()[a].step == checker_.lines()[b].step &&
                       checker_.lines()[a].phase == checker_.lines()[b].phase;
    if (is_message(a) || is_message(b)) {
      const bool opposite = checker_.in(a).op != checker_.in(b).op && is_message(a) && is_message(b);
      return alike && checker_.in(a).micro == checker_.in(b).micro && opposite == (rank_of(a) != rank_of(b));
    }
    return alike && checker_.in(a).op == checker_.in(b).op &&
           same_collectives(within(a, groups), within(b, groups), carries_tokens(checker_.in(a).op));
  }

  bool is_message(int k) const { return checker_.in(k).op == Op::send || checker_.in(k).op == Op::recv; }

  /// Only one member of a broadcast sends, and token shares and parts of matrices differ in size.
  static bool same_collectives(const std::vector<Comm>& a, const std::vector<Comm>& b, bool tokens) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [tokens](const Comm& x, const Comm& y) {
      const bool uneven = tokens || x.kind == "broadcast" || x.kind == kAllToAll;
      return x == y || (uneven && x.kind == y.kind && x.axis == y.axis && x.group == y.group);
    });
  }

  /// All ranks that use all of `groups` run their collectives in the same order.
  void alike(const Groups& groups) {
    if (std::any_of(groups.begin(), groups.end(), [&](int g) { return different_.contains(g); })) return;
    std::vector<std::vector<int>> sequences;  // of each rank that uses all of the groups
    for (const auto& [rank, own] : groups_)
      if (std::includes(own.begin(), own.end(), groups.begin(), groups.end()))
        sequences.push_back(filtered(rank, groups));
    size_t longest = 0;
    for (const auto& s : sequences) longest = std::max(longest, s.size());
    for (size_t n = 0; n < longest; ++n)
      if (differs(sequences, n, groups)) {
        different_.insert(groups.begin(), groups.end());
        return;
      }
  }

  /// Reports the n-th collective if it differs between ranks, at a line of the minority, or of the later ranks in a
  /// tie.
  bool differs(const std::vector<std::vector<int>>& sequences, size_t n, const Groups& groups) {
    const auto same = [&](const auto& a, const auto& b) {
      return a.size() > n && b.size() > n ? equal(a[n], b[n], groups) : (a.size() > n) == (b.size() > n);
    };
    const auto party = [&](const auto& one) {
      return std::count_if(sequences.begin(), sequences.end(), [&](const auto& other) { return same(one, other); });
    };
    const auto all = static_cast<std::ptrdiff_t>(sequences.size());
    if (party(sequences.front()) == all) return false;
    const auto& rest = *std::max_element(sequences.begin(), sequences.end(),
                                         [&](const auto& a, const auto& b) { return party(a) < party(b); });
    const auto* odd = &sequences.back();
    for (const auto& s : sequences)
      if (!same(s, rest) && (same(*odd, rest) || party(s) <= party(*odd))) odd = &s;
    const bool ended = odd->size() <= n, rest_ended = rest.size() <= n;
    std::string text =
        "as collective " + std::to_string(n + 1) + " of " + names(groups) + " rank " +
        std::to_string(rank_of(odd->front())) + " runs " +
        (ended ? "none (its last is this line)" : collective((*odd)[n])) + ", rank " +
        std::to_string(rank_of(rest.front())) +
        (rest_ended ? " none (its last is " + checker_.at(rest.back()) + ")"
                    : " runs " + collective(rest[n]) + " in line " + std::to_string(checker_.lines()[rest[n]].number));
    checker_.report(ended ? odd->back() : (*odd)[n], "groups",
                    text + "; they would wait for each other: put them in the same order on all members");
    return true;
  }

  int rank_of(int k) const { return checker_.lines()[k].rank; }

  std::string collective(int k) const {
    const Instruction& in = checker_.in(k);
    return (in.comm.empty() ? "nothing" : in.comm.front().kind) + " (" + checker_.what(k) + ", " +
           std::to_string(in.bytes) + " bytes, step " + std::to_string(checker_.lines()[k].step) + ", group " +
           in.group + ")";
  }

  std::string names(const Groups& groups) const {
    std::string text;
    for (int g : groups) text += (text.empty() ? "" : " and ") + checker_.groups()[g].name;
    return text;
  }

  Checker& checker_;
  std::map<int, std::vector<int>> sequence_;  // by rank: its lines with a collective
  std::map<int, Groups> groups_;              // by rank: the groups it uses
  Groups messages_;                           // pairs of stages
  Groups different_;                          // already reported
};

/// Simulates all ranks: an instruction starts when it is first in its lane and its waits are done; one with a group also
/// waits until all members reach it. Ranks that remain when nothing can progress are deadlocked.
class Progress {
 public:
  explicit Progress(Checker& checker)
      : checker_(checker),
        done_(checker.lines().size()),
        collectives_(checker.groups().size()),
        members_(checker.groups().size()) {
    for (const Pass& pass : checker.passes()) ranks_[pass.rank].passes.push_back(&pass);
    for (int k = 0; k < static_cast<int>(checker.lines().size()); ++k)
      for (const int group : checker.groups_of(k)) members_[group].insert(checker.lines()[k].rank);
    completed_.resize(checker.lines().size());
  }

  void run() {
    for (auto& [rank, state] : ranks_) {
      begin_pass(state);
      ready_.push_back(rank);
    }
    while (!ready_.empty()) {
      const int rank = ready_.front();
      ready_.pop_front();
      while (advance(rank)) {
      }
    }
    report();
  }

 private:
  static constexpr int kLanes = kLaneCount;
  struct Rank {
    std::vector<const Pass*> passes;
    size_t pass = 0;
    std::array<std::deque<int>, kLanes> lanes;  // the rest of the pass
  };

  void begin_pass(Rank& rank) const {
    if (rank.pass == rank.passes.size()) return;
    for (int k = rank.passes[rank.pass]->begin; k < rank.passes[rank.pass]->end; ++k)
      rank.lanes[static_cast<int>(checker_.in(k).lane)].push_back(k);
  }

  /// Runs what can run on `rank`; false if nothing could.
  bool advance(int rank) {
    Rank& state = ranks_[rank];
    bool moved = false, left = false;
    for (auto& lane : state.lanes) {
      while (!lane.empty() && waited(lane.front()) && arrive(lane.front())) {
        done_[lane.front()] = true;
        lane.pop_front();
        moved = true;
      }
      left = left || !lane.empty();
    }
    if (!left && state.pass < state.passes.size()) {
      ++state.pass;
      begin_pass(state);
      moved = true;
    }
    return moved;
  }

  bool waited(int k) const {
    return std::all_of(checker_.waits(k).begin(), checker_.waits(k).end(), [&](int wait) { return done_[wait]; });
  }

  /// Runs the collectives of `k` in order; true when all are done.
  bool arrive(int k) {
    const std::vector<int>& groups = checker_.groups_of(k);
    while (completed_[k] < groups.size() && arrive(k, groups[completed_[k]])) ++completed_[k];
    return completed_[k] == groups.size();
  }

  /// Arrives at a collective of `k`; true once all members have arrived (the last arrival completes it for all).
  bool arrive(int k, int group) {
    auto& collective = collectives_[group];
    if (collective.completed.erase(k) > 0) return true;
    collective.arrived.try_emplace(checker_.lines()[k].rank, k);  // one at a time: a communicator is a queue
    if (collective.arrived.size() < members_[group].size()) return false;
    for (const auto& [rank, line] : collective.arrived) {
      collective.completed.insert(line);
      if (line != k) ready_.push_back(rank);
    }
    collective.arrived.clear();
    return collective.completed.erase(k) > 0;
  }

  void report() {
    std::string others;
    int first = -1;
    for (const auto& [rank, state] : ranks_) {
      int at = -1;
      for (const auto& lane : state.lanes)
        if (!lane.empty() && (at < 0 || lane.front() < at)) at = lane.front();
      if (at < 0) continue;
      if (first < 0)
        first = at;
      else
        others += (others.empty() ? "; so is rank " : ", rank ") + std::to_string(rank) + " at " + checker_.at(at);
    }
    if (first < 0) return;
    const std::vector<int>& groups = checker_.groups_of(first);
    const bool in_collective = completed_[first] < groups.size() && waited(first);
    checker_.report(first, "progress",
                    "is stuck for ever, waiting for " +
                        (in_collective ? "the other members of " + checker_.groups()[groups[completed_[first]]].name
                                       : awaited_line(first)) +
                        others + "; order waits and collectives alike on all ranks");
  }

  std::string awaited_line(int k) const {
    for (int wait : checker_.waits(k))
      if (!done_[wait]) return checker_.at(wait);
    return "an earlier instruction of its lane";
  }

  struct Collective {
    std::map<int, int> arrived;  // rank -> line
    std::set<int> completed;     // lines whose collective is complete but not yet removed from their lanes
  };

  Checker& checker_;
  std::map<int, Rank> ranks_;
  std::vector<bool> done_;
  std::vector<size_t> completed_;  // by line: number of its completed collectives
  std::vector<Collective> collectives_;
  std::vector<std::set<int>> members_;  // ranks of the file that use the group
  std::deque<int> ready_;
};

}  // namespace

void check_groups(Checker& checker) { GroupRules(checker).run(); }
void check_progress(Checker& checker) { Progress(checker).run(); }

}  // namespace tessera::plan
