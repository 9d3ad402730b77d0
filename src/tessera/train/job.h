#pragma once
// What a recipe names, made: the denoiser, the autoencoder, the text encoder, and the shapes that follow.
#include <array>

#include "tessera/engine/store.h"
#include "tessera/net/model.h"
#include "tessera/net/text_encoder.h"
#include "tessera/train/planning.h"
#include "tessera/train/recipe.h"

namespace tessera::train {

struct Job {
  std::unique_ptr<net::Denoiser> model;
  std::unique_ptr<net::VideoCodec> codec;
  std::unique_ptr<net::TextEncoder> text;
  std::string name;                    ///< "wan", a preset, or the folder of the weights
  std::array<int64_t, 4> latent{};     ///< [C, F, H, W] of one sample of the first bucket, which is what is sampled
  std::array<int64_t, 4> largest{};    ///< of the bucket with most tokens, which is what is planned for
  int64_t tokens = 0;                  ///< of one sample of that
  std::vector<int64_t> bucket_tokens;  ///< of one sample of each bucket
  int64_t context_length = 0;          ///< most text tokens of a prompt
  int guidance_branches = 1;           ///< denoiser passes of one sampler step
  int64_t resident = 0;                ///< bytes of the autoencoder's tables
};

/// Throws UserError (usage) where the parts do not fit each other (latent channels, text width, sizes).
Job make_job(const Recipe& recipe);

/// What the planner needs of the job. `prompts`: how many are sampled.
PlanRequest plan_request(const Recipe& recipe, const Job& job, const Mesh& mesh, int prompts);

/// model.path's weights, or initial values keyed by the seed: the same on every layout.
void load_initial_weights(const Recipe& recipe, const Job& job, engine::Store& store);

}  // namespace tessera::train
