#pragma once
// What the mechanisms of a plan did in an executed training step, counted from its instructions.
//
//   const InEffect did = in_effect(schedule.list, times, waited_for(schedule.list, times), blocks);
//   did.text();           // "recomputed 12 of 40 blocks; 38 of 40 gathers hidden; 40 updates on the host; 3 updates pending at most"
#include <array>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// Of one rank. A block counts once, however many micro-batches there are; instructions count each.
struct InEffect {
  /// Instructions of a kind. Hidden: the compute lane waited for less than a twentieth of its time.
  struct Hidden {
    int all = 0, hidden = 0;
  };
  int blocks = 0;                                     ///< that the rank computes
  int recomputed = 0, offloaded = 0, compressed = 0;  ///< blocks whose activations were
  Hidden gathers, reductions, fetches, stashes, messages;
  int late_updates = 0;   ///< of the step before, deferred to just before a forward
  int early_updates = 0;  ///< before the norm was known: in the backward
  int host_updates = 0;   ///< on the host's cores
  /// The most updates at one time that had not ended though their gradients were complete; those of the step before are
  /// from the begin of the step on.
  int pending = 0;
  std::string attention;  ///< the kernels that attention took (plan::AttentionUse), on a GPU

  /// What acted, with its counts; mechanisms that did nothing are left out.
  std::string text() const;
};

/// `times[i]`: when instruction i began and ended; `waited`: waited_for() of both; `blocks`: by unit, whether it is one of
/// the model's blocks.
InEffect in_effect(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times,
                   const std::vector<double>& waited, const std::vector<bool>& blocks);

}  // namespace tessera::engine
