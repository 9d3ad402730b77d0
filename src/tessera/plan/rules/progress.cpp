// Lets all ranks run: an instruction starts when it is first in its lane and its waits are done; one with a group
// also waits until all members are at theirs. Who is left when nothing moves any more is stuck.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>

#include "tessera/plan/rules/book.h"

namespace tessera::plan {

namespace {

class Progress {
 public:
  explicit Progress(Book& book)
      : book_(book), done_(book.lines().size()), meeting_(book.groups().size()), members_(book.groups().size()) {
    for (const Pass& pass : book.passes()) ranks_[pass.rank].passes.push_back(&pass);
    for (int k = 0; k < static_cast<int>(book.lines().size()); ++k)
      for (const int group : book.groups_of(k)) members_[group].insert(book.lines()[k].rank);
    met_.resize(book.lines().size());
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
    complain();
  }

 private:
  static constexpr int kLanes = kLaneCount;
  struct Rank {
    std::vector<const Pass*> passes;
    size_t pass = 0;
    std::array<std::deque<int>, kLanes> lanes;  // what is left of the pass
  };

  void begin_pass(Rank& rank) const {
    if (rank.pass == rank.passes.size()) return;
    for (int k = rank.passes[rank.pass]->begin; k < rank.passes[rank.pass]->end; ++k)
      rank.lanes[static_cast<int>(book_.in(k).lane)].push_back(k);
  }

  /// Runs what can run on `rank`; false when nothing could.
  bool advance(int rank) {
    Rank& state = ranks_[rank];
    bool moved = false, left = false;
    for (auto& lane : state.lanes) {
      while (!lane.empty() && waited(lane.front()) && meet(lane.front())) {
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
    return std::all_of(book_.waits(k).begin(), book_.waits(k).end(), [&](int wait) { return done_[wait]; });
  }

  /// Goes through the collectives of `k`, one after the other; true when all are done.
  bool meet(int k) {
    const std::vector<int>& groups = book_.groups_of(k);
    while (met_[k] < groups.size() && meet(k, groups[met_[k]])) ++met_[k];
    return met_[k] == groups.size();
  }

  /// Arrives at a collective of `k`; true once all members have (the others are told when the last one comes).
  bool meet(int k, int group) {
    auto& meeting = meeting_[group];
    if (meeting.met.erase(k) > 0) return true;
    meeting.arrived.try_emplace(book_.lines()[k].rank, k);  // one at a time: a communicator is a queue
    if (meeting.arrived.size() < members_[group].size()) return false;
    for (const auto& [rank, line] : meeting.arrived) {
      meeting.met.insert(line);
      if (line != k) ready_.push_back(rank);
    }
    meeting.arrived.clear();
    return meeting.met.erase(k) > 0;
  }

  void complain() {
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
        others += (others.empty() ? "; so is rank " : ", rank ") + std::to_string(rank) + " at " + book_.at(at);
    }
    if (first < 0) return;
    const std::vector<int>& groups = book_.groups_of(first);
    const bool meets = met_[first] < groups.size() && waited(first);
    book_.complain(first, "progress",
                   "never ends: it waits for " +
                       (meets ? "the other members of " + book_.groups()[groups[met_[first]]].name : missing(first)) +
                       others + "; order waits and collectives alike on all ranks");
  }

  std::string missing(int k) const {
    for (int wait : book_.waits(k))
      if (!done_[wait]) return book_.at(wait);
    return "an earlier instruction of its lane";
  }

  struct Meeting {
    std::map<int, int> arrived;  // rank -> line
    std::set<int> met;           // lines whose members are all there, not yet taken off their lanes
  };

  Book& book_;
  std::map<int, Rank> ranks_;
  std::vector<bool> done_;
  std::vector<size_t> met_;  // per line: how many of its collectives are done
  std::vector<Meeting> meeting_;
  std::vector<std::set<int>> members_;  // ranks of the file that use the group
  std::deque<int> ready_;
};

}  // namespace

void check_progress(Book& book) { Progress(book).run(); }

}  // namespace tessera::plan
