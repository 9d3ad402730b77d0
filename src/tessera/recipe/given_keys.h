#pragma once
// Readers of the keys that say by weights which frames a model is given.
//
//   {"diffusion.mask_types", Kind::list, "", "...", read_mask_types, {}}
#include "tessera/recipe/settings.h"

namespace tessera::recipe {

/// KIND=WEIGHT of known kinds, each; all throw UserError (usage) naming what is wrong.
void read_conditions(Recipe& recipe, const Given& given);
void read_mask_ratios(Recipe& recipe, const Given& given);
void read_mask_types(Recipe& recipe, const Given& given);
void read_drop_condition(Recipe& recipe, const Given& given);

}  // namespace tessera::recipe
