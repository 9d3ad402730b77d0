#pragma once
// Whether a run's model is given frames as its recipe says: diffusion.conditions, mask_ratios and mask_types; and what
// such frames take.
//
//   check_given(recipe, *job.model, *job.codec);
//
// And whether the files that a recipe points to are what their keys say, before anything is made of them: headers alone, in
// milliseconds even for 14B.
//
//   check_sources(recipe, Missing::refused);      // model.path is a LoRA, a shard is missing, data.vae is a text encoder ...
#include <exception>
#include <string>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Throws UserError (usage) for a model that takes no such frames, stored latents whose frames nobody can encode on
/// their own, and shapes that are too short for every kind.
void check_given(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec);

/// Bytes of what a training sample has of them, for a latent of this shape.
int64_t given_bytes(const recipe::Recipe::Diffusion& diffusion, const net::Denoiser& model,
                    const std::array<int64_t, 4>& latent);

/// All that clips of this length may be asked for and that is encoded beside the whole clip, each once.
std::vector<families::GivenFrames> encoded_given(const recipe::Recipe::Diffusion& diffusion, int64_t frames,
                                                 int64_t latent_frames);

/// net::Denoiser::blank with the frames that make a sample of this recipe largest: where frames read another text than
/// the others, each run of them has rows of its own.
net::Sample blank_sample(const recipe::Recipe& recipe, const net::Denoiser& model,
                         const std::array<int64_t, 4>& latent);

// Keys of a recipe that change nothing together with others.
//
//   for (const std::string& message : without_effect(recipe, mesh)) log::warn(message);

/// A sentence for each key that was set and does nothing, or not what its name promises, with what to change. `mesh`:
/// of the ranks that run.
std::vector<std::string> without_effect(const recipe::Recipe& recipe, const Mesh& mesh);

// How a command or a rank ends with an error: its message in the log, and its exit code.
//
//   try { ... } catch (const std::exception& error) { std::_Exit(static_cast<int>(tell_error(error))); }

/// Logs what failed and returns the exit code: of a GPU that failed for good in place of the errors that follow from it; of
/// our own errors; 7 or 3 for files; 8 for memory; 70 for everything else, which is a bug.
Exit tell_error(const std::exception& error);

/// Whether weights may be missing, as in a plan that is made before their download (job/assumed.h).
enum class Missing { refused, planned };

/// Throws UserError (input) naming the key and what its file is instead, for files that are missing or of another kind.
/// What is not known at all is left to its loader, which has more to say.
void check_sources(const recipe::Recipe& recipe, Missing missing);

}  // namespace tessera::job
