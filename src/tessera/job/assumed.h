#pragma once
// What a recipe leaves open until it is known what runs it, or names without it being there.
//
//   job::choose_device(recipe.run.device, place);
//   log::info(job::settle_compute(recipe));            // plan.compute_dtype = "auto" becomes bf16 or fp32
//   log::info(job::assume_released(recipe));           // in plan alone: weights that are not here yet
#include <string>

#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Writes what plan.compute_dtype = "auto" means into the recipe: the dtype of plan.file; that in which the run computed
/// whose checkpoint run.resume chooses; else by the GPUs of plan.profile, or the device that choose_device() took. Gives the
/// line that says what it is and why, empty where the recipe names a dtype. The same on every rank of a run.
///
/// Likewise plan.attention = "auto": that of plan.file; cuDNN on sm_90, flash elsewhere and with run.deterministic; told where
/// there was a choice. Throws UserError (usage) where the recipe asks for a cuDNN that this GPU's process does not have.
std::string settle_compute(recipe::Recipe& recipe);

/// Puts released sizes in the place of weights that are not here, so that a run is planned before its download: by
/// model.preset, or by the release whose name is in the path (families/releases.h); the autoencoder, the encoders and the
/// tokenizer alike. Gives the line that says what was assumed, empty where nothing is missing. Throws UserError (input)
/// for a path that is not here and does not tell what belongs there.
std::string assume_released(recipe::Recipe& recipe);

}  // namespace tessera::job
