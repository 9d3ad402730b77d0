#include "tessera/plan/shares.h"

#include <algorithm>
#include <set>

namespace tessera::plan {

Plan::Slice slice_of(const Plan& plan, int64_t batch, int dp_rank, int64_t micro) {
  if (batch == plan.global_batch) return plan.slice(dp_rank, micro);
  const int64_t ranks = plan.mesh.dp_size(), micros = plan.accumulation();
  const int64_t first = dp_rank * batch / ranks, own = (dp_rank + 1) * batch / ranks - first;
  const int64_t begin = own * micro / micros;
  return {first + begin, own * (micro + 1) / micros - begin};
}

int64_t asking_base(const Plan& plan, AskBase which, int dp_rank, int64_t micro) {
  if (which == AskBase::none) return 0;
  const Plan::Slice own = plan.slice(dp_rank, micro);
  const int64_t twins = (own.first + own.count) / 2 - own.first / 2;
  return which == AskBase::any ? own.count : which == AskBase::twins ? twins : own.count - twins;
}

std::vector<int64_t> asking_base(const Plan& plan, AskBase which) {
  std::vector<int64_t> most(static_cast<size_t>(plan.accumulation()));
  for (int64_t micro = 0; micro < std::ssize(most); ++micro)
    for (int d = 0; d < plan.mesh.dp_size(); ++d)
      most[static_cast<size_t>(micro)] = std::max(most[static_cast<size_t>(micro)], asking_base(plan, which, d, micro));
  return most;
}

std::vector<int64_t> smaller_micro_batches(const Plan& plan) {
  const int64_t even = plan.global_batch / plan.mesh.dp_size(), more = plan.global_batch % plan.mesh.dp_size();
  std::set<int64_t> shares(plan.shares.begin(), plan.shares.end());
  if (shares.empty()) shares = {even, more > 0 ? even + 1 : even};
  std::set<int64_t> counts;
  for (const int64_t share : shares) counts.insert(share % plan.micro_batch);
  counts.erase(0);
  return {counts.begin(), counts.end()};
}

std::vector<int64_t> shares_by_cost(int64_t global_batch, const std::vector<double>& seconds) {
  const auto ranks = static_cast<int64_t>(seconds.size());
  std::vector<int64_t> shares(seconds.size(), global_batch >= ranks ? 1 : 0);
  // Samples cost a rank the same each, so it is optimal to give each next sample to the rank that would finish first.
  for (int64_t left = global_batch >= ranks ? global_batch - ranks : global_batch; left > 0; --left) {
    size_t first = 0;
    const auto done = [&](size_t r) { return static_cast<double>(shares[r] + 1) * seconds[r]; };
    for (size_t r = 1; r < shares.size(); ++r)
      if (done(r) < done(first)) first = r;
    ++shares[first];
  }
  return shares;
}

double slowest(const std::vector<int64_t>& shares, const std::vector<double>& seconds) {
  double last = 0;
  for (size_t r = 0; r < shares.size(); ++r) last = std::max(last, static_cast<double>(shares[r]) * seconds[r]);
  return last;
}

}  // namespace tessera::plan
