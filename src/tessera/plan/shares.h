#pragma once
// How many samples of a step each dp rank runs when ranks are not equally fast.
//
//   plan.shares = shares_by_cost(plan.global_batch, {0.5, 0.5, 1.0, 0.5});     // 14 -> {4, 4, 2, 4}
//
// Which rank runs a sample changes nothing in the curve: noise and timestep belong to the sample's place in the batch.
#include <cstdint>
#include <vector>

namespace tessera::plan {

/// `seconds[r]`: of one sample on dp rank r, above 0. The shares under which the last rank is done earliest; among
/// those that are equal, the lower ranks take more. Every rank keeps a sample while there are as many, so that it is
/// still measured. The same for the same numbers, wherever it is called.
std::vector<int64_t> shares_by_cost(int64_t global_batch, const std::vector<double>& seconds);

/// Seconds until the last rank is done.
double slowest(const std::vector<int64_t>& shares, const std::vector<double>& seconds);

}  // namespace tessera::plan
