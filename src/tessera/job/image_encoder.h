#pragma once
// The image tower as a recipe names it, CLIP's or SigLIP's.
//
//   auto tower = open_image_encoder(recipe, model.conditions());           // no weights yet
#include <memory>

#include "tessera/models/encoders/clip_vision.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// The image encoder that the recipe names or the model's width asks for; nothing for a model without, and for a run none of
/// whose samples is given a picture. Throws UserError (usage) where they do not fit each other.
std::unique_ptr<models::clip::ClipVision> open_image_encoder(const recipe::Recipe& recipe,
                                                             const net::Conditions& wanted);

}  // namespace tessera::job
