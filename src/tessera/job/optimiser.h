#pragma once
// The optimiser that a recipe names.
//
//   engine.optimise(optimiser_of(recipe, plan.states));
#include <memory>

#include "tessera/net/unit_update.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// `format`: of the plan, which says what is stored.
std::unique_ptr<const net::UnitUpdate> optimiser_of(const recipe::Recipe& recipe, plan::StateFormat format);

}  // namespace tessera::job
