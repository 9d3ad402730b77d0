#include "tessera/job/given_checks.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

namespace {

void refuse(const char* key, const recipe::Recipe& recipe, const std::string& what, const std::string& hint) {
  std::string shown;
  for (const std::string& item : split_list(recipe.values.at(key))) shown += (shown.empty() ? "" : ",") + item;
  throw UserError(Exit::usage, key, shown + ": " + what, hint);
}

void check_lengths(const recipe::Recipe& recipe, const net::VideoCodec& codec) {
  for (const data::Bucket& bucket : recipe.data.clips.buckets) {
    const int64_t latents = codec.latent_shape(bucket.frames, bucket.height, bucket.width)[1];
    if (latents < 2) continue;  // a picture
    double weight = 0;
    for (const families::Weighted& kind :
         families::fitting(recipe.diffusion.conditions, latents, families::is_causal(bucket.frames, latents)))
      weight += kind.weight;
    if (weight > 0) continue;
    refuse("diffusion.conditions", recipe, "clips of " + bucket.text() + " are too short for each of them",
           "give a kind of single frames, or of none, a weight, or leave that shape out");
  }
}

}  // namespace

void check_given(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec) {
  const net::Conditions takes = model.conditions();
  if (!recipe.diffusion.conditions.empty()) {
    if (!takes.given_frames)
      refuse("diffusion.conditions", recipe, "the model reads no frames beside the noisy ones",
             takes.frame_masks ? "diffusion.mask_ratios gives it frames without noise" : "leave it out");
    if (recipe.data.latents && !families::given_text(recipe.diffusion.conditions).empty())
      refuse("diffusion.conditions", recipe,
             "frames that are given are encoded on their own, and data.latents = \"npy\" has latents of whole clips",
             "train on the clips, or leave it out");
  }
  for (const recipe::RunPart& part : recipe::run_parts(recipe)) {
    if (!part.recipe.diffusion.conditions.empty()) recipe::in_part(part, [&] { check_lengths(part.recipe, codec); });
    if (!part.recipe.diffusion.mask_ratios.empty() && !takes.frame_masks)
      refuse("diffusion.mask_ratios", part.recipe, "the model takes no frames without noise among the noisy ones",
             takes.given_frames ? "diffusion.conditions gives it frames beside them" : "leave it out");
  }
}

int64_t given_bytes(const recipe::Recipe& recipe, const net::Conditions& takes, const std::array<int64_t, 4>& latent) {
  if (latent[1] < 2) return 0;
  const bool gives = std::ranges::any_of(recipe.diffusion.conditions, [](const families::Weighted& kind) {
    return kind.weight > 0 && families::places_of(kind.name).any();
  });
  if (takes.given_frames && gives) return 4 * (latent[0] + 1) * latent[1] * latent[2] * latent[3];
  return takes.frame_masks && !recipe.diffusion.mask_ratios.empty() ? 4 * latent[1] : 0;
}

}  // namespace tessera::job
