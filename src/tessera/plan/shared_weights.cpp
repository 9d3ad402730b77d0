#include "tessera/plan/shared_weights.h"

#include <algorithm>

namespace tessera::plan {

namespace {

/// Whether two ranks hold the same shards of all frozen parameters of the unit.
bool same_frozen(const Plan& plan, const UnitLayout& layout, int a, int b) {
  const bool same_tp = plan.mesh.coordinate(a, Axis::tp) == plan.mesh.coordinate(b, Axis::tp);
  return std::ranges::all_of(layout.buffers, [&](const Buffer& buffer) {
    return buffer.trainable ||
           ((buffer.over_tp || same_tp) && plan.shard_rank(buffer, a) == plan.shard_rank(buffer, b));
  });
}

}  // namespace

int64_t frozen_bytes(const UnitLayout& layout) {
  int64_t bytes = 0;
  for (const Buffer& buffer : layout.buffers)
    if (!buffer.trainable) bytes += stored_bytes(buffer.stored, buffer.shard);
  return bytes;
}

std::vector<int> weight_sharers(const Plan& plan, const UnitLayout& layout, int unit, int rank) {
  if (plan.local_world == 1 || plan.units[static_cast<size_t>(unit)].parameters != Tier::host ||
      !plan.owns(rank, unit) || frozen_bytes(layout) == 0)
    return {};
  const int first = rank / plan.local_world * plan.local_world;
  std::vector<int> sharers;
  for (int other = first; other < std::min(first + plan.local_world, plan.mesh.world()); ++other)
    if (plan.owns(other, unit) && same_frozen(plan, layout, rank, other)) sharers.push_back(other);
  if (sharers.size() == 1) sharers.clear();
  return sharers;
}

int weight_filler(const std::vector<int>& sharers, int unit) {
  return sharers[static_cast<size_t>(unit) % sharers.size()];
}

int64_t counted_share(int64_t bytes, const std::vector<int>& sharers, int unit, int rank) {
  const auto ranks = static_cast<int64_t>(sharers.size());
  return bytes / ranks + (rank == weight_filler(sharers, unit) ? bytes % ranks : 0);
}

int64_t counted_host_bytes(const Plan& plan, const UnitLayout& layout, int unit, int rank) {
  const int64_t all = shard_bytes(layout, plan.states.masters);
  const std::vector<int> sharers = weight_sharers(plan, layout, unit, rank);
  if (sharers.empty()) return all;
  const int64_t frozen = frozen_bytes(layout);
  return all - frozen + counted_share(frozen, sharers, unit, rank);
}

}  // namespace tessera::plan
