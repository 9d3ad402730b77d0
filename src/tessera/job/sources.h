#pragma once
// What a recipe points to, looked at before anything is made of it: headers alone, in milliseconds even for 14B.
//
//   check_sources(recipe, Missing::refused);      // model.path is a LoRA, a shard is missing, data.vae is a text encoder ...
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Whether weights may be missing, as in a plan that is made before their download (job/assumed.h).
enum class Missing { refused, planned };

/// Throws UserError (input) naming the key and what its file is instead, for files that are missing or of another kind.
/// What is not known at all is left to its loader, which has more to say.
void check_sources(const recipe::Recipe& recipe, Missing missing);

}  // namespace tessera::job
