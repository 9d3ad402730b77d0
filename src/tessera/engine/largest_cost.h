#pragma once
// What a unit costs on whichever rank has the most, where the rows of a row space lie with some ranks more than others.
//
//   Footprint cost = measured_on(last);
//   take_larger(cost, measured_on(first));        // each number the larger one
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

/// Raises each number of `cost` to that of `other`, the same unit as another rank runs it. Throws InternalError where
/// the two send in another order: such ranks would wait for each other.
void take_larger(plan::Footprint& cost, const plan::Footprint& other);

}  // namespace tessera::engine
