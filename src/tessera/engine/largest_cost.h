#pragma once
// The largest cost of a unit over the ranks that share tokens: they may have different numbers of a row space's rows.
//
//   Footprint cost = measured_on(last);
//   take_larger(cost, measured_on(first));        // each number the larger one
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

/// Raises each number of `cost` to that of `other`, the cost of the same unit with a batch of another shape. What is
/// sent stays that of `cost`.
void take_larger_shape(plan::Footprint& cost, const plan::Footprint& other);

/// The same for the cost on another rank. Throws InternalError if the two run collectives in different orders: such
/// ranks would wait for each other.
void take_larger(plan::Footprint& cost, const plan::Footprint& other);

}  // namespace tessera::engine
