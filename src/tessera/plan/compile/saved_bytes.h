#pragma once
// Bytes that a unit's forward saves for its backward, by what the plan does with them, and the sites that save them.
//
//   check_sites(spec, plan);
//   offloaded_bytes(spec, plan, 3);          // of one micro-batch
//   compressed_bytes(spec, plan, 3).whole;   // of one micro-batch, before quantisation
#include <cstdint>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Throws UserError (usage) if a unit's plan names a site that the unit does not have, with the nearest name.
void check_sites(const ModelSpec& model, const Plan& plan);
/// Bytes of a unit's quantised activations in one micro-batch, between its forward and its backward.
struct Compressed {
  int64_t whole = 0;                ///< before quantisation; this memory is freed
  int64_t kept = 0, offloaded = 0;  ///< quantised bytes that stay on the device, and those offloaded
  int64_t bytes() const { return kept + offloaded; }
};
Compressed compressed_bytes(const ModelSpec& model, const Plan& plan, int unit);
/// Bytes that one micro-batch of the unit offloads between its forward and its backward.
int64_t offloaded_bytes(const ModelSpec& model, const Plan& plan, int unit);
/// The sites whose results a recomputed unit keeps or offloads, named as in Footprint::replays; empty for none.
std::string replayed_sites(const UnitSpec& unit, const UnitPlan& plan);

}  // namespace tessera::plan
