#pragma once
// Memory of the schedules of a run with updates just in time that are not its usual step. Internal to the planner.
//
//   const ArenaBytes arenas = step.covering(arenas_without_pending(model, plan, rank));
#include <algorithm>
#include <cstdint>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Bytes of the arenas of a schedule.
struct ArenaBytes {
  int64_t device = 0, host = 0;
  bool operator==(const ArenaBytes&) const = default;
  ArenaBytes covering(const ArenaBytes& other) const {
    return {std::max(device, other.device), std::max(host, other.host)};
  }
};

/// Of a step with no deferred updates before it, and of these updates alone: as compile_train and compile_updates have them,
/// without ordering their instructions any further.
ArenaBytes arenas_without_pending(const ModelSpec& model, const Plan& plan, int rank);

}  // namespace tessera::plan
