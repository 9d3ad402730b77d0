#include "tessera/plan/search/by_hand.h"

#include "tessera/base/check.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

PlannerInput reconciled(PlannerInput input, int blocks) {
  if (input.recompute_every > 0) input.recompute_units = (blocks + input.recompute_every - 1) / input.recompute_every;
  if (!input.activations || !input.recompute_units) return input;
  const bool recompute = input.activations->graph == Graph::recompute;
  const std::string recomputed = *input.recompute_units >= blocks ? "all" : std::to_string(*input.recompute_units);
  if (recompute != (*input.recompute_units > 0))
    throw UserError(Exit::usage, "plan.recompute",
                    recomputed + " blocks with plan.activations = \"" + std::string(name(*input.activations)) + "\"",
                    "leave one of the two on auto");
  if (!recompute) input.recompute_units.reset();
  return input;
}

PlannerInput placed(PlannerInput input) {
  if (input.update_on != Tier::host) return input;
  for (std::optional<Tier>* tier : {&input.parameters, &input.gradients, &input.states_tier})
    if (!*tier) *tier = Tier::host;
  Plan plan;
  plan.units.push_back({.parameters = *input.parameters,
                        .gradients = *input.gradients,
                        .states = *input.states_tier,
                        .update_on = Tier::host});
  plan.check_updates("plan.");
  return input;
}

}  // namespace tessera::plan
