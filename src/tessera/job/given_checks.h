#pragma once
// Whether a run's model is given frames as its recipe says: diffusion.conditions and diffusion.mask_ratios.
//
//   check_given(recipe, *job.model, *job.codec);
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Throws UserError (usage) for a model that takes no such frames, stored latents whose frames nobody can encode on
/// their own, and shapes that are too short for every kind.
void check_given(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec);

/// Bytes of what a training sample has of them, for a latent of this shape.
int64_t given_bytes(const recipe::Recipe& recipe, const net::Conditions& takes, const std::array<int64_t, 4>& latent);

}  // namespace tessera::job
