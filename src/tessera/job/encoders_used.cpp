#include "tessera/job/encoders_used.h"

#include <algorithm>

#include "tessera/families/frames/frame_masks.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

namespace {

/// Of any part of the run; a stage that does not come is told elsewhere.
template <class Has>
bool any_part(const recipe::Recipe& recipe, const Has& has) {
  for (size_t number = 0; number <= recipe.stages.size(); ++number)
    if (has(recipe.at_stage(number))) return true;
  return false;
}

}  // namespace

bool drops_captions(const recipe::Recipe& recipe) {
  return recipe.diffusion.caption_dropout > 0 || recipe.diffusion.pooled_dropout > 0 ||
         families::any_beside(recipe.diffusion.mask_types);
}

bool encodes_texts(const recipe::Recipe& recipe) {
  return any_part(recipe, [](const recipe::Recipe& part) {
    const bool null = drops_captions(part) || part.asks_blank();
    return !part.data.texts || part.sample.every > 0 || (null && part.data.null_text.empty());
  });
}

bool encodes_clips(const recipe::Recipe& recipe) {
  return any_part(recipe, [](const recipe::Recipe& part) { return !part.data.latents || part.sample.every > 0; });
}

}  // namespace tessera::job
