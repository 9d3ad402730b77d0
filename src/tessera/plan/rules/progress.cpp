// Simulates all ranks: an instruction starts when it is first in its lane and its waits are done; one with a group also
// waits until all members reach it. Ranks that remain when nothing can progress are deadlocked.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>

#include "tessera/plan/rules/checker.h"

namespace tessera::plan {

namespace {

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

void check_progress(Checker& checker) { Progress(checker).run(); }

}  // namespace tessera::plan
