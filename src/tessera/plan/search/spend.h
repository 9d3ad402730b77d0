#pragma once
// Spends the memory that the best plan of a search leaves, pass by pass. Internal to the planner.
//
//   spend(pool, evaluator, mesh, pipelines);                   // pool.best is as fast or faster
#include "tessera/plan/search/evaluator.h"

namespace tessera::plan {

/// `pipelines`: those to choose from; empty without a pp axis.
void spend(Pool& pool, const Evaluator& evaluator, const Mesh& mesh, const std::vector<Pipeline>& pipelines);

}  // namespace tessera::plan
