// All members of a group run the same sequence of its collectives, and ranks that share several groups interleave them
// in the same order. Communicators are queues: two ranks that enter A then B and B then A deadlock. Messages between
// stages match send to receive in order; they have lanes of their own and need no common interleaving.
#include <algorithm>
#include <map>
#include <set>

#include "tessera/plan/rules/checker.h"

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

  /// Only one member of a broadcast sends, and token shares differ in size.
  static bool same_collectives(const std::vector<Comm>& a, const std::vector<Comm>& b, bool tokens) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [tokens](const Comm& x, const Comm& y) {
      const bool uneven = tokens || x.kind == "broadcast";
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

}  // namespace

void check_groups(Checker& checker) { GroupRules(checker).run(); }

}  // namespace tessera::plan
