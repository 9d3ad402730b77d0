#pragma once
// Models by name: a family, and in it a preset or a config.json.
//
//   auto model = make_denoiser({.preset = "wan2.1-t2v-1.3b"});
//   auto other = make_denoiser({.path = "Wan2.1-T2V-1.3B"});       // sizes from its config.json
//   auto text = make_text_encoder({.preset = "umt5-demo"});
//   auto codec = make_codec("haar:48");
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/net/text_encoder.h"

namespace tessera::models {

/// A family of denoisers: one row of the registry.
struct Family {
  std::string name;
  std::vector<std::string> (*presets)();
  std::unique_ptr<net::Denoiser> (*from_preset)(const std::string& preset);
  /// `json` is a config.json, or the recipe's fields (`file` names it in messages). `weights`: shapes by official name,
  /// which know more than some config files; may be empty.
  std::unique_ptr<net::Denoiser> (*from_json)(const std::string& json, const std::string& file,
                                              const std::map<std::string, std::vector<int64_t>>& weights);
};

/// One more row, behind those of this folder; before the first model is made.
void add_family(const Family& family);

/// The [model] table of a recipe. A family is "wan", or "wan-i2v" where the type that config.json and weights tell is
/// overridden. Sizes come from the first that is given: config (a file), preset, path (its
/// config.json); the fields of config_text replace theirs, or are all there is.
struct ModelChoice {
  std::string family = "wan";
  std::string preset;
  std::string config;
  std::string path;
  std::string config_text;                                   ///< fields of a config.json, as JSON
  std::map<std::string, std::vector<int64_t>> weights = {};  ///< shapes of the tensors at `path`, by stored name
};

/// All throw UserError (usage) naming the nearest known name, or (input) for an unreadable config.
std::unique_ptr<net::Denoiser> make_denoiser(const ModelChoice& choice);
std::unique_ptr<net::TextEncoder> make_text_encoder(const ModelChoice& choice);  ///< family is not read
std::unique_ptr<net::VideoCodec> make_codec(const std::string& name);  ///< "haar" (48 channels) or "haar:CHANNELS"

std::vector<std::string> denoiser_presets();

/// The preset whose parameter `name` (official) has this shape; empty when none has. For messages: "this is
/// wan2.1-t2v-1.3b, try model.preset = ...".
std::string likely_preset(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace tessera::models
