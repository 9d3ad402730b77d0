#pragma once
// The embedding that a checkpoint learned for "no caption": its model was trained with it wherever captions were
// dropped.
//
//   if (at::Tensor rows = learned_null_caption(recipe, model); rows.defined()) ...      // [n, D]
#include <filesystem>
#include <string>

#include "tessera/job/experts.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// What an exported folder of weights has beside them (models::official_only_beside), so that it needs nothing of the weights
/// that its run began with: their learned null caption. Writes nothing where there is none.
void save_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model, const std::filesystem::path& folder);

/// [n, D] fp32 from the weights of model.path, or from what convert left beside them; undefined where there is none, or
/// where the model begins with random weights. Throws UserError (input) for one of another width than the model's text.
at::Tensor learned_null_caption(const recipe::Recipe& recipe, const net::Denoiser& model);

// What of a run has random weights, or none, where trained ones may have been meant: said in the run's first line, and
// refused by training where nobody asked for it.
//
//   log::info("model: " + job.name + random_parts(recipe, looks));
//   check_random_parts(recipe, experts, looks);                           // before a fresh start, never by plan or import

/// "; the model has random weights; haar is a wavelet without weights"; empty where all is given. `looks`: the model has
/// an image encoder.
std::string random_parts(const recipe::Recipe& recipe, bool looks);

/// Throws UserError (usage) for LoRA on a random base unless model.init = "random", and for trained weights with an
/// encoder that is random or has no weights unless its key names it: data.vae, data.text_encoder, data.image_encoder.
/// Weights that a run of ours exported may have been trained with such encoders, and pass.
void check_random_parts(const recipe::Recipe& recipe, const Experts& experts, bool looks);

}  // namespace tessera::job
