#pragma once
// Which frozen encoders a run uses: none for what it reads from files that another program encoded, but for its samples.
//
//   if (encodes_texts(recipe)) check_text_encoders(recipe, job, weights);
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Captions or prompts; also the caption of no words, where captions are dropped and data.null_text has no file of it.
bool encodes_texts(const recipe::Recipe& recipe);
/// Clips; or samples are decoded.
bool encodes_clips(const recipe::Recipe& recipe);

/// Whether samples train with the caption of no words.
bool drops_captions(const recipe::Recipe& recipe);

}  // namespace tessera::job
