#include "tessera/plan/deal.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

int64_t sum_of(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

/// Of one expert: an even part for each rank, and one more for those that hold most above it. `totals`: what the ranks
/// have of the experts before.
std::vector<int64_t> even_shares(const std::vector<int64_t>& chosen, const std::vector<int64_t>& totals) {
  const auto ranks = static_cast<int64_t>(chosen.size());
  const int64_t all = sum_of(chosen), even = all / ranks;
  std::vector<int64_t> shares(chosen.size(), even);
  std::vector<size_t> order(chosen.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const int64_t above_a = std::max<int64_t>(0, chosen[a] - even), above_b = std::max<int64_t>(0, chosen[b] - even);
    return above_a != above_b ? above_a > above_b : totals[a] < totals[b];
  });
  for (int64_t i = 0; i < all % ranks; ++i) ++shares[order[static_cast<size_t>(i)]];
  return shares;
}

}  // namespace

int64_t Deal::sent(int dp_rank) const {
  int64_t samples = 0;
  for (const Move& move : moves) samples += move.from == dp_rank ? move.samples : 0;
  return samples;
}

int64_t Deal::received(int dp_rank) const {
  int64_t samples = 0;
  for (const Move& move : moves) samples += move.to == dp_rank ? move.samples : 0;
  return samples;
}

Deal deal(const ExpertShares& chosen) {
  Deal dealt;
  std::vector<int64_t> totals(chosen.empty() ? 0 : chosen.front().size(), 0);
  for (size_t e = 0; e < chosen.size(); ++e) {
    const std::vector<int64_t> shares = even_shares(chosen[e], totals);
    size_t to = 0;
    int64_t filled = 0;  // of what `to` lacks
    for (size_t from = 0; from < shares.size(); ++from)
      for (int64_t above = chosen[e][from] - shares[from]; above > 0;) {
        const int64_t lacks = shares.at(to) - chosen[e][to] - filled;
        if (lacks <= 0) {
          ++to, filled = 0;
          continue;
        }
        const int64_t samples = std::min(above, lacks);
        dealt.moves.push_back({e, static_cast<int>(from), static_cast<int>(to), samples});
        above -= samples, filled += samples;
      }
    for (size_t r = 0; r < shares.size(); ++r) totals[r] += shares[r];
    dealt.shares.push_back(shares);
  }
  return dealt;
}

/// A rank keeps its part of each expert that it has samples of, and at least as much where it has all of them.
int64_t most_sent(int64_t own, int ranks) { return own - div_up(own, ranks); }

StepUse step_use(const ExpertShares& shares, const std::vector<int64_t>& micro_batches) {
  StepUse use;
  for (size_t e = 0; e < shares.size(); ++e) {
    const std::vector<int64_t>& of_expert = shares[e];
    const int64_t micro_batch = micro_batches.at(micro_batches.size() == 1 ? 0 : e);
    const auto ranks = static_cast<int64_t>(of_expert.size());
    const int64_t most = std::ranges::max(of_expert), micros = div_up(most, micro_batch);
    use.samples += sum_of(of_expert);
    use.room += ranks * most;
    use.micros += ranks * micros;
    for (const int64_t samples : of_expert) use.dummies += micros - div_up(samples, micro_batch);
  }
  return use;
}

}  // namespace tessera::plan
