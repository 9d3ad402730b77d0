#pragma once
// Which frozen weights of the host tier ranks of one machine share, and what each of them counts.
//
// [Note: shared weights] Ranks of a machine (Plan::local_world consecutive ranks) that hold the same shards of all frozen
// parameters of a unit in host memory have them in one mapping. One of the ranks fills it (the units in turn, so that all
// ranks read files and each fills what lies on its own NUMA node), and none writes it after that: an update moves and changes
// trained parameters alone. Trained parameters, gradients and states are each rank's own, and so are inactive experts that a
// swap moves between the device and the host, which writes them. Each rank counts an equal part of what it shares, so the
// ranks' host bytes add up to those of the machine.
//
//   weight_sharers(plan, layout, unit, rank);            // {0, 1}: ranks 0 and 1 share
//   counted_host_bytes(plan, layout, unit, rank);        // trained bytes, and half of the frozen ones
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Bytes of a rank's frozen parameters of the unit, which come last in its memory for them.
int64_t frozen_bytes(const UnitLayout& layout);

/// The ranks, in order, that share the unit's frozen weights with `rank`, itself among them; empty: none does.
std::vector<int> weight_sharers(const Plan& plan, const UnitLayout& layout, int unit, int rank);

/// Of weight_sharers() the rank that fills them.
int weight_filler(const std::vector<int>& sharers, int unit);

/// Bytes that `rank` counts of `bytes` that the sharers have together.
int64_t counted_share(int64_t bytes, const std::vector<int>& sharers, int unit, int rank);

/// Bytes of the unit's parameters that `rank` counts where they are on the host tier.
int64_t counted_host_bytes(const Plan& plan, const UnitLayout& layout, int unit, int rank);

}  // namespace tessera::plan
