#pragma once
// Shipped recipes as `tessera plan` plans them where none of their folders is there.
//
//   const recipe::Recipe recipe = shipped("wan2.1-t2v-14b_full_h200", {{"plan.profile", "h200"}});
#include "tessera/job/assumed.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::planning {

/// Released sizes stand for the weights, and the dtype of the arithmetic is decided.
inline recipe::Recipe shipped(const std::string& name, const recipe::Overrides& changes) {
  recipe::Recipe recipe = recipe::load_recipe(TESSERA_SOURCE_DIR "/recipes/" + name + ".toml", changes);
  job::assume_released(recipe);
  job::settle_compute(recipe);
  return recipe;
}

}  // namespace tessera::planning
