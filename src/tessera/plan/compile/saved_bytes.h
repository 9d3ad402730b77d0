#pragma once
// What a unit's forward saves for its backward, by what the plan does with it: in bytes, and at which sites.
//
//   check_sites(spec, plan);
//   offloaded_bytes(spec, plan, 3);          // of a micro-batch, to the host
//   compressed_bytes(spec, plan, 3).whole;   // of what is put into fewer bits
#include <cstdint>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Throws UserError (usage) when a unit's plan names a site that the unit does not have, with the nearest.
void check_sites(const ModelSpec& model, const Plan& plan);
/// What a micro-batch of the unit has in fewer bits between its forward and its backward, in bytes.
struct Compressed {
  int64_t whole = 0;           ///< of what is compressed: its memory is free meanwhile
  int64_t kept = 0, away = 0;  ///< in fewer bits: what stays on the device, and what goes to the host
  int64_t bytes() const { return kept + away; }
};
Compressed compressed_bytes(const ModelSpec& model, const Plan& plan, int unit);
/// Bytes that a micro-batch of the unit sends to the host tier between its forward and its backward.
int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit);
/// The sites whose results a recomputed unit keeps or offloads, as Footprint::replays names them; empty for none.
std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan);

}  // namespace tessera::plan
