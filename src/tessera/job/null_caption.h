#pragma once
// The embedding that a checkpoint learned for "no caption": its model was trained with it wherever captions were
// dropped.
//
//   if (at::Tensor rows = learned_null_caption(recipe, model); rows.defined()) ...      // [n, D]
#include <filesystem>

#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// What an exported folder of weights has beside them (weights::official_only_beside), so that it needs nothing of the weights
/// that its run began with: their learned null caption. Writes nothing where there is none.
void save_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model, const std::filesystem::path& folder);

/// [n, D] fp32 from the weights of model.path, or from what convert left beside them; undefined where there is none, or
/// where the model begins with random weights. Throws UserError (input) for one of another width than the model's text.
at::Tensor learned_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model);

}  // namespace tessera::job
