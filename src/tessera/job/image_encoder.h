#pragma once
// CLIP's image tower as a recipe names it, and the path of its weights.
//
//   auto tower = open_image_encoder(recipe, model.conditions());           // no weights yet
//   run.load(open_image_weights(recipe.data.image_encoder_path));
#include <filesystem>
#include <memory>

#include "tessera/checkpoint/weights.h"
#include "tessera/models/clip/clip_vision.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// The image encoder that the recipe names or the model's width asks for; nothing for a model without. Throws UserError
/// (usage) where they do not fit each other.
std::unique_ptr<models::clip::ClipVision> open_image_encoder(const recipe::Recipe& recipe,
                                                             const net::Conditions& wanted);

/// Of a file, or of a folder: the official release has the tower in models_clip*, diffusers in image_encoder/. Throws
/// UserError (input).
checkpoint::WeightSet open_image_weights(const std::filesystem::path& path);

}  // namespace tessera::job
