#include "tessera/plan/deal.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"

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

/// Adds what one step of `shares` does to the sums of a way.
void add(DealForecast::Way& way, const ExpertShares& shares, int64_t micro_batch) {
  const StepUse use = step_use(shares, micro_batch);
  way.idle += use.idle(), way.dummies += use.dummy_share();
  for (const std::vector<int64_t>& of_expert : shares)
    if (const int64_t most = std::ranges::max(of_expert); most > 0) way.passes[most] += 1;
}

void divide(DealForecast::Way& way, double steps) {
  way.idle /= steps, way.dummies /= steps;
  for (auto& [samples, passes] : way.passes) passes /= steps;
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

StepUse step_use(const ExpertShares& shares, int64_t micro_batch) {
  StepUse use;
  for (const std::vector<int64_t>& of_expert : shares) {
    const auto ranks = static_cast<int64_t>(of_expert.size());
    const int64_t most = std::ranges::max(of_expert), micros = div_up(most, micro_batch);
    use.samples += sum_of(of_expert);
    use.room += ranks * most;
    use.micros += ranks * micros;
    for (const int64_t samples : of_expert) use.dummies += micros - div_up(samples, micro_batch);
  }
  return use;
}

DealForecast deal_forecast(const std::vector<double>& frequencies, const std::vector<int64_t>& own,
                           int64_t micro_batch) {
  const double sum = std::accumulate(frequencies.begin(), frequencies.end(), 0.0);
  check_internal(sum > 0 && !own.empty(), "plan.deal", "a forecast of no expert or no rank");
  // Enough that the mean is known to a hundredth of its spread, and few enough for the largest batches.
  constexpr int64_t kSteps = 4000, kLeastSteps = 200, kDraws = 2'000'000;
  const int64_t work = std::max(sum_of(own), std::ssize(own) * std::ssize(frequencies));  // of a step
  const int64_t steps = std::clamp(kDraws / std::max<int64_t>(1, work), kLeastSteps, kSteps);
  DealForecast forecast;
  for (int64_t step = 0; step < steps; ++step) {
    const RandomKey key(0, Purpose::expert, static_cast<uint64_t>(step));
    ExpertShares chosen(frequencies.size(), std::vector<int64_t>(own.size(), 0));
    uint64_t sample = 0;
    for (size_t r = 0; r < own.size(); ++r)
      for (int64_t s = 0; s < own[r]; ++s) {
        double left = key.uniform(sample++) * sum;
        size_t e = 0;
        while (e + 1 < frequencies.size() && (left -= frequencies[e]) >= 0) ++e;
        ++chosen[e][r];
      }
    const Deal dealt = deal(chosen);
    add(forecast.undealt, chosen, micro_batch);
    add(forecast.dealt, dealt.shares, micro_batch);
    std::vector<int64_t> sent(own.size(), 0), received(own.size(), 0);
    for (const Deal::Move& move : dealt.moves) {
      sent[static_cast<size_t>(move.from)] += move.samples, received[static_cast<size_t>(move.to)] += move.samples;
      forecast.moved += static_cast<double>(move.samples);
    }
    forecast.busiest += static_cast<double>(std::max(std::ranges::max(sent), std::ranges::max(received)));
  }
  const auto count = static_cast<double>(steps);
  divide(forecast.dealt, count), divide(forecast.undealt, count);
  forecast.moved /= count, forecast.busiest /= count;
  forecast.worst_sent = most_sent(std::ranges::max(own), static_cast<int>(own.size()));
  return forecast;
}

}  // namespace tessera::plan
