#include "tessera/train/slow_ranks.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tessera/plan/shares.h"

namespace tessera::train {

namespace {

constexpr double kWorthIt = 0.05;  // of a step; below, measurements would push samples to and fro

/// The lower one of an even number, so that of two ranks the faster is the measure; 0 for none.
double median(std::vector<double> values) {
  std::erase(values, 0.0);
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<long>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::string SlowRanks::Slow::text() const {
  char words[160];
  std::snprintf(words, sizeof words,
                "rank %d is slow: over the last %lld steps a sample took it %.4g s, %.2f times the others' %.4g s",
                rank, static_cast<long long>(steps), seconds, factor, others);
  return words;
}

SlowRanks::SlowRanks(const Mesh& mesh, SlowRankOptions options) : mesh_(mesh), options_(options) {}

void SlowRanks::step(const std::vector<double>& seconds) {
  if (options_.factor <= 0 || seconds.size() < 2 || std::ranges::all_of(seconds, [](double s) { return s == 0; }))
    return;  // nothing to look for, or the first step's report, which has no step behind it
  Row row{seconds, std::vector<double>(seconds.size(), 0.0)};
  for (int stage = 0; stage < mesh_[Axis::pp]; ++stage) {
    std::vector<double> peers;
    for (size_t r = 0; r < seconds.size(); ++r)
      if (mesh_.coordinate(static_cast<int>(r), Axis::pp) == stage) peers.push_back(seconds[r]);
    const double usual = median(peers);
    for (size_t r = 0; r < seconds.size(); ++r)
      if (usual > 0 && mesh_.coordinate(static_cast<int>(r), Axis::pp) == stage) row.factors[r] = seconds[r] / usual;
  }
  ++unseen_;
  window_.push_back(std::move(row));
  if (static_cast<int64_t>(window_.size()) > options_.steps) window_.pop_front();
}

double SlowRanks::median_factor(int rank) const {
  std::vector<double> factors;
  for (const Row& row : window_) factors.push_back(row.factors[static_cast<size_t>(rank)]);
  return median(std::move(factors));
}

std::vector<SlowRanks::Slow> SlowRanks::found() {
  std::vector<Slow> list;
  if (!measured()) return list;
  const int64_t steps = std::exchange(unseen_, 0);
  for (int rank = 0; rank < static_cast<int>(window_.front().seconds.size()); ++rank) {
    const double factor = median_factor(rank);
    if (factor < options_.factor && !states_.contains(rank)) continue;
    State& state = states_[rank];
    if (factor < options_.factor) {
      if (!state.slow) continue;
      state.calm =
          factor < recovered() ? state.calm + steps : 0;  // at the limit itself it would be named again and again
      const int64_t doublings = std::min<int64_t>(state.named - 1, 30);
      if (factor < recovered() && state.calm >= options_.steps * ((int64_t{1} << doublings) - 1)) state.slow = false;
      continue;
    }
    state.calm = 0;
    if (std::exchange(state.slow, true)) continue;
    ++state.named;
    std::vector<double> seconds;
    for (const Row& row : window_) seconds.push_back(row.seconds[static_cast<size_t>(rank)]);
    const double own = median(std::move(seconds));
    list.push_back({rank, factor, own, own / factor, options_.steps});
  }
  return list;
}

std::optional<std::vector<int64_t>> SlowRanks::better_shares(const plan::Plan& plan) {
  if (!measured() || options_.factor <= 0) return std::nullopt;
  // Ranks that share a sample are as slow as the slowest of them.
  std::vector<double> cost(static_cast<size_t>(mesh_.dp_size()), 0.0);
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    double& seconds = cost[static_cast<size_t>(mesh_.dp_rank(rank))];
    seconds = std::max(seconds, median_factor(rank));
  }
  for (double& seconds : cost)
    if (seconds == 0) seconds = 1;  // it had no samples: nothing is known against it
  std::vector<int64_t> now = plan.shares;
  if (now.empty())
    for (int dp = 0; dp < mesh_.dp_size(); ++dp)
      now.push_back((dp + 1) * plan.global_batch / mesh_.dp_size() - dp * plan.global_batch / mesh_.dp_size());
  const std::vector<int64_t> better = plan::shares_by_cost(plan.global_batch, cost);
  if (plan::slowest(better, cost) > plan::slowest(now, cost) * (1 - kWorthIt)) return std::nullopt;
  window_.clear();
  return better;
}

}  // namespace tessera::train
