#pragma once
// The knapsack of [Note: mixing] (mix.h): how each block saves so that least is computed again. Internal to the planner.
//
//   best_mix({{keep, recompute}, {keep, recompute}}, int64_t{10} << 30, 0);   // {1, 0}: the first block recomputes
#include <cstdint>
#include <vector>

#include "tessera/plan/search/evaluator.h"

namespace tessera::plan {

/// A way of saving of one block as the knapsack sees it.
struct MixOption {
  double seconds = 0;  ///< computed again
  int64_t kept = 0;    ///< bytes on the device between forward and backward
  int64_t sent = 0;    ///< bytes offloaded in between
  bool operator==(const MixOption&) const = default;
};

/// The options with the least sum of seconds whose `kept` sum to `kept` at most and whose `sent` to `sent` at most: an
/// index into each block's list. Empty if there are none. Solved over the blocks by tables of (bytes kept, bytes
/// sent) -> least seconds, exact up to one part in 256 of `kept` and one in 16 of `sent`.
std::vector<int> best_mix(const std::vector<std::vector<MixOption>>& blocks, int64_t kept, int64_t sent);

// Gives each block its own way of saving activations: the mix of ways that computes least again within the memory there
// is. Internal to the planner.
//
//   mix_activations(pool, evaluator);                          // pool.best is as fast or faster
//
// [Note: mixing] What blocks keep on the device and what they send to the host add up, and so do the seconds that they
// compute again. So the best mix under a limit of device bytes and of bytes sent is a knapsack (best_mix.h). Peak memory
// is not quite that sum, so the limit moves by what the compiled plan takes more or less than expected, a few times. Then
// single blocks and pairs of blocks change while the simulator finds that faster: copies in the open, and what the sum
// does not see. At last the timeline says which block's copies compute waits for: that block exchanges its way with one
// nearby, whose copy has more compute beside it.
//
// [Note: trading] A byte of a unit's gradients, states or parameters on the device is one less for what blocks keep there,
// and one more for what they send to the host. How many units are best on which side only shows once the blocks are mixed
// for it: an eighth of the units changes sides and the knapsack is solved anew, while that helps; then a sixteenth, then
// fewer.

/// What the block computes again, keeps and sends under the plan.
MixOption mix_option(const ModelSpec& model, const Plan& plan, const Machine& machine, size_t block);

void mix_activations(Pool& pool, const Evaluator& evaluator);

/// Where both budgets count: moves buffers of some units between device and host, mixes the blocks anew with the memory
/// that is left on either side, and keeps what is faster. Ends with the changes of single blocks, from several mixes.
void trade_memory(Pool& pool, const Evaluator& evaluator);

/// The plan with blocks that offload between blocks that do not, so that each copy overlaps the compute of several.
/// `last`: so many blocks of a kind at the end, where the peak is, stay as they are.
Plan alternate_offloading(Plan plan, const Evaluator& evaluator, size_t last);

}  // namespace tessera::plan
