#pragma once
// Models by name: a family, and in it a preset or a config.json.
//
//   auto model = make_denoiser({.preset = "wan2.1-t2v-1.3b"});
//   auto other = make_denoiser({.path = "Wan2.1-T2V-1.3B"});       // sizes from its config.json
//   auto text = make_text_encoder({.preset = "umt5-demo"});
//   auto codec = make_codec("haar:48");
//
// And models by their files: identify() finds model, naming and prefix by names and shapes of tensors.
//
//   Identity what = identify(shapes);
//   what.model, what.naming;                                   // "wan2.1-t2v-1.3b", "diffusers"
//   what.official("transformer_blocks...");                    // the official name of a stored tensor
#include <map>
#include <string>
#include <vector>

#include "tessera/models/common/family.h"
#include "tessera/models/known.h"

namespace tessera::models {

/// The [model] table of a recipe. A family is "wan", or "wan-i2v" to override the type in config.json and weights.
/// Sizes come from the first of these that is set: config (a file), preset, path (its config.json, else the preset
/// whose shapes its tensors have); fields of config_text replace fields of that source, or are the only source.
struct ModelChoice {
  std::string family = {};  ///< empty: that of the preset, of the config.json or of the weights, else the standard one
  std::string preset = {};
  std::string config = {};
  std::string path = {};
  std::string config_text = {};                              ///< fields of a config.json, as JSON
  std::map<std::string, std::vector<int64_t>> weights = {};  ///< shapes of the tensors at `path`, by stored name
};

/// The family that the text of a config.json says it is of (_class_name); null where it does not.
const Family* family_of_config(const std::string& text);
/// All throw UserError (usage) naming the nearest known name, or (input) for an unreadable config.
std::unique_ptr<net::Denoiser> make_denoiser(const ModelChoice& choice);
std::unique_ptr<net::TextEncoder> make_text_encoder(const ModelChoice& choice);  ///< family is not read
/// Presets of text encoders that have a pooled row (net::TextEncoder), each with its width.
std::vector<std::pair<std::string, int64_t>> pooled_presets();
/// An autoencoder without weights, "haar" or "haar:CHANNELS". `channels`: the default if the name has none; 0: the
/// autoencoder's own default.
std::unique_ptr<net::VideoCodec> make_codec(const std::string& name, int64_t channels = 0);
/// Whether make_codec knows the name before the colon.
bool is_built_in_codec(const std::string& name);
/// A released autoencoder with random weights, "wan2.1-vae" or another of autoencoder_presets(); null for any other
/// name.
std::unique_ptr<VideoVae> make_preset_vae(const std::string& name, const Tiling& tiling);
std::vector<std::string> autoencoder_presets();
/// Finds the autoencoder by the tensor names of a weight file; otherwise as AutoencoderMake::make.
std::unique_ptr<VideoVae> make_vae(const std::string& config, const std::string& config_file,
                                   const WeightSource& weights, const Tiling& tiling);

std::vector<std::string> denoiser_presets();

/// The preset whose parameter `name` (official) has this shape; empty when none has. For messages: "this is
/// wan2.1-t2v-1.3b, try model.preset = ...".
std::string likely_preset(const std::string& name, const std::vector<int64_t>& shape);

Identity identify(const Shapes& tensors);

/// The family of a denoiser; for other models the standard family.
const Family& family_of(const Identity& identity);
/// The form of a model's files, by the names of its parameters; null: none has all of their marks.
const WeightForm* form_of(const net::Denoiser& model);

}  // namespace tessera::models
