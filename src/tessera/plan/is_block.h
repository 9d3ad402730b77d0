#pragma once
// Which units are the model's blocks.
//
//   if (is_block(spec.units[u])) ...                    // "blocks.3", not "stem" or "head"
#include "tessera/plan/unit_spec.h"

namespace tessera::plan {

/// Whether the unit is a block, neither stem nor head; only blocks recompute or offload activations.
inline bool is_block(const UnitSpec& unit) { return unit.kind != "stem" && unit.kind != "head"; }

}  // namespace tessera::plan
