#pragma once
// What a recipe names, made: the denoiser, the autoencoder, the text encoder, and the shapes that follow.
#include <array>

#include "tessera/engine/store/transfer.h"
#include "tessera/job/experts.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/net/encoders.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// What follows from the sizes of a recipe's data; stages have their own.
struct Shapes {
  std::array<int64_t, 4> latent{};     ///< [C, F, H, W] of one sample of the first bucket, which is what is sampled
  std::array<int64_t, 4> largest{};    ///< of the bucket that is planned for: that with most tokens in a step
  int64_t tokens = 0;                  ///< of one sample of that
  int64_t batch = 0;                   ///< samples of its global batches
  std::vector<int64_t> bucket_tokens;  ///< of one sample of each bucket
  int guidance_branches = 1;           ///< denoiser passes of one sampler step
};

struct Job : Shapes {
  std::unique_ptr<net::Denoiser> model;    ///< the form of all experts; it has no weights
  std::unique_ptr<net::Denoiser> teacher;  ///< of other sizes than the model's, of a student that is matched with it
  Experts experts;
  std::unique_ptr<net::VideoCodec> codec;
  std::unique_ptr<net::TextEncoder> text;
  std::unique_ptr<net::TextEncoder> second;         ///< of models that take a pooled caption or quoted text; else none
  std::unique_ptr<models::clip::ClipVision> image;  ///< of runs whose model is given features of a picture; else none
  std::vector<std::string> adapted;                 ///< modules with adapters, of a run that trains those
  std::string name;                                 ///< "wan", a preset, or the folder of the weights
  int64_t context_length = 0;                       ///< most text tokens of a prompt
  int64_t vae_tile = 0;                             ///< data.vae_tile, or what auto chose
  int64_t vae_tile_frames = 0;                      ///< data.vae_tile_frames, alike
  int64_t resident = 0;                             ///< bytes of the wavelet's tables
  int local_world = 0;  ///< ranks that were started on a machine; 0: none were, it is planned
};

/// Throws UserError (usage) where the parts do not fit each other (latent channels, text width, sizes).
Job make_job(const recipe::Recipe& recipe);

/// Throws UserError (usage) where the model or the autoencoder does not take the sizes.
Shapes shapes_of(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec);

/// Passes of the denoiser that one clip of a sample takes: its steps; with audio conditioning one more, without audio.
int sample_passes(const recipe::Recipe::Sample& sample, const net::Denoiser& model);
/// Clips of a sample during training.
inline int64_t sample_clips(const recipe::Recipe::Sample& sample, const net::Conditions& model) {
  return model.goes_on ? std::max<int64_t>(sample.clips, 1) : 1;
}

/// Throws UserError (usage) for a model that is sampled and converted but not trained, with the reason.
void check_trainable(const Job& job);

/// Throws UserError (usage) where `weights` are of another program and were trained with two text encoders
/// of which one would have random weights here: the model knows no such captions. Those that a run of ours wrote are
/// marked (checkpoint/weights.h).
void check_text_encoders(const recipe::Recipe::Data& data, const Job& job, const std::string& weights);

/// Whether the weights of model.path and data.text_encoder_path are there and have the sizes of the job, by their
/// headers alone: before anything is encoded. Throws UserError (input) naming file, tensor and both shapes.
void check_weights(const recipe::Recipe& recipe, const Job& job);

/// The weights of every expert's path, or initial values keyed by the seed: the same on every layout. Gives what
/// storing a frozen base in fewer bits changed of this rank's share.
engine::Roundings load_initial_weights(const recipe::Recipe& recipe, const Job& job, engine::Store& store);
/// The same of other paths, for instance of an exported model; as many experts as the store has.
engine::Roundings load_weights_of(const recipe::Recipe& recipe, const Job& job, const Experts& experts,
                                  engine::Store& store);
/// Those of the frozen teacher, where the run has one; no checkpoint has them.
void load_teacher(const Job& job, engine::Store& store);

}  // namespace tessera::job
