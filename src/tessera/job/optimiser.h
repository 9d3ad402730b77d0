#pragma once
// The optimiser that a recipe names.
//
//   engine.optimise(optimiser_of(recipe, plan.states));
#include <functional>
#include <memory>

#include "tessera/net/unit_update.h"
#include "tessera/optim/prodigy.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Prodigy's numbers; the format of its states and its seed are left as they begin.
optim::ProdigyOptions prodigy_options(const recipe::Recipe::Train& train);

/// The rate of a parameter as a multiple of that of the schedule; 0: it stays as it is.
using RateOf = std::function<double(const plan::ParamSpec&)>;
/// `optimiser` with a rate of its own for each parameter.
std::unique_ptr<const net::UnitUpdate> with_rates(std::unique_ptr<const net::UnitUpdate> optimiser, RateOf rate);

/// LoRA+ (Hayou et al., 2024): B moves by a multiple of the rate of all others.
RateOf plus_rate(double ratio);

/// `format`: of the plan, which says what is stored.
std::unique_ptr<const net::UnitUpdate> optimiser_of(const recipe::Recipe& recipe, plan::StateFormat format);

}  // namespace tessera::job
