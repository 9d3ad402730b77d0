#pragma once
// The second text encoder as a recipe names it: of models that take one vector a caption (CLIP-L beside T5), and of those
// that take the rows of what a caption has in quotes (byT5 beside Qwen2.5-VL).
//
//   job.second = open_second_encoder(recipe, model.conditions());               // no weights yet
#include <memory>

#include "tessera/net/encoders.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// The encoder of data.pooled_encoder or data.glyph_encoder, or of the model's width; nothing for a model without. Throws
/// UserError (usage) where they do not fit each other.
std::unique_ptr<net::TextEncoder> open_second_encoder(const recipe::Recipe& recipe, const net::Conditions& wanted);

}  // namespace tessera::job
