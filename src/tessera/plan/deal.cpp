#include "tessera/plan/deal.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"

namespace tessera::plan {

namespace {

int64_t sum_of(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

int64_t of_expert(const std::vector<int64_t>& values, size_t e) { return values.at(values.size() == 1 ? 0 : e); }

/// Of one expert: an even part for each rank, and one more for those that hold most above it. `totals`: what the ranks
/// have of the experts before. `taken`: ranks that get one more last; empty: none.
std::vector<int64_t> even_shares(const std::vector<int64_t>& chosen, const std::vector<int64_t>& totals,
                                 const std::vector<bool>& taken) {
  const auto ranks = static_cast<int64_t>(chosen.size());
  const int64_t all = sum_of(chosen), even = all / ranks;
  std::vector<int64_t> shares(chosen.size(), even);
  std::vector<size_t> order(chosen.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    if (!taken.empty() && taken[a] != taken[b]) return static_cast<bool>(taken[b]);
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

ExpertPairs expert_pairs(const ExpertShares& chosen, const std::vector<int64_t>& micro_batches) {
  std::vector<std::pair<int64_t, size_t>> rests;  // ranks of the last micro-batch, and the expert
  for (size_t e = 0; e < chosen.size(); ++e) {
    const auto ranks = static_cast<int64_t>(chosen[e].size());
    const int64_t even = sum_of(chosen[e]) / ranks, rest = sum_of(chosen[e]) % ranks;
    if (rest > 0 && even % of_expert(micro_batches, e) == 0) rests.emplace_back(rest, e);
  }
  std::ranges::sort(rests);
  ExpertPairs pairs;
  for (size_t few = 0, many = rests.size(); few + 1 < many; --many) {
    const auto& [least, first] = rests[few];
    const auto& [most, second] = rests[many - 1];
    if (least + most > std::ssize(chosen[first])) continue;
    pairs.push_back(std::minmax(first, second));
    ++few;
  }
  std::ranges::sort(pairs);
  return pairs;
}

Deal deal(const ExpertShares& chosen, const ExpertPairs& pairs) {
  Deal dealt;
  std::vector<int64_t> totals(chosen.empty() ? 0 : chosen.front().size(), 0);
  for (size_t e = 0; e < chosen.size(); ++e) {
    std::vector<bool> taken;
    for (const auto& [first, second] : pairs)
      if (second == e)
        for (const int64_t samples : dealt.shares[first])
          taken.push_back(samples > std::ranges::min(dealt.shares[first]));
    const std::vector<int64_t> shares = even_shares(chosen[e], totals, taken);
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

StepUse step_use(const ExpertShares& shares, const std::vector<int64_t>& micro_batches, const ExpertPairs& pairs) {
  StepUse use;
  const auto last_micro = [&](size_t e) {  // samples of its fullest rank
    const int64_t most = std::ranges::max(shares[e]), size = of_expert(micro_batches, e);
    return most - (div_up(most, size) - 1) * size;
  };
  for (size_t e = 0; e < shares.size(); ++e) {
    const int64_t micro_batch = of_expert(micro_batches, e);
    const auto ranks = static_cast<int64_t>(shares[e].size());
    const int64_t most = std::ranges::max(shares[e]), micros = div_up(most, micro_batch);
    use.samples += sum_of(shares[e]);
    use.room += ranks * most;
    use.micros += ranks * micros;
    for (const int64_t samples : shares[e]) use.dummies += micros - div_up(samples, micro_batch);
  }
  for (const auto& [first, second] : pairs)
    use.room -= std::ssize(shares[first]) * std::min(last_micro(first), last_micro(second));
  return use;
}

}  // namespace tessera::plan
