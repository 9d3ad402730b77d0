#pragma once
// What the mechanisms of a plan did in an executed training step, counted from its instructions.
//
//   const InEffect did = in_effect(schedule.list, times, waited_for(schedule.list, times));
//   did.text();           // "recomputed 12 of 40 units; gathers 38 of 40 hidden; 40 updates on the host"
#include <array>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::engine {

/// Of one rank. A unit counts once, however many micro-batches there are; instructions count each.
struct InEffect {
  /// Instructions of a kind. Hidden: the compute lane waited for less than a twentieth of its time.
  struct Hidden {
    int all = 0, hidden = 0;
  };
  int units = 0;                                      ///< that the rank computes
  int recomputed = 0, offloaded = 0, compressed = 0;  ///< units whose activations were
  Hidden gathers, reductions, fetches, stashes, messages;
  int late_updates = 0;   ///< of the step before, deferred to just before a forward
  int early_updates = 0;  ///< before the norm was known: in the backward
  int host_updates = 0;   ///< on the host's cores

  /// What acted, with its counts; mechanisms that did nothing are left out.
  std::string text() const;
};

/// `times[i]`: when instruction i began and ended; `waited`: waited_for() of both.
InEffect in_effect(const std::vector<plan::Instruction>& list, const std::vector<std::array<double, 2>>& times,
                   const std::vector<double>& waited);

}  // namespace tessera::engine
