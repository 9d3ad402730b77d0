#include "tessera/job/image_encoder.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/models/identify.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

namespace clip = models::clip;
namespace fs = std::filesystem;

namespace {

/// A model folder's own config.json is its transformer's.
bool is_tower_config(const std::string& text) {
  return text.find("\"image_size\"") != text.npos && text.find("\"patch_size\"") != text.npos;
}

clip::Config tower_config(const fs::path& path) {
  const checkpoint::ModelPart part = checkpoint::find_part(path, "image_encoder");
  if (!part.config.empty()) {
    const std::string text = checkpoint::read_text(part.config);
    if (is_tower_config(text)) return clip::parse_config(text, part.config.string());
  }
  const auto stored = checkpoint::stored_shapes(checkpoint::open_weights(part.weights));
  const models::Identity what = models::identify(stored);
  return clip::config_of(models::official_shapes(what, stored), path.string());
}

clip::Config tower_preset(const std::string& name, const net::Conditions& wanted) {
  std::vector<std::string> known;
  for (const auto& [preset, config] : clip::presets()) {
    known.push_back(preset);
    if (preset == name || (name == "auto" && config.dim == wanted.clip_dim && config.rows() == wanted.clip_rows))
      return config;
  }
  if (name == "auto")
    throw UserError(Exit::usage, "data.image_encoder",
                    "the model takes " + std::to_string(wanted.clip_rows) + " rows of a picture of width " +
                        std::to_string(wanted.clip_dim) + ", which no preset has",
                    "give data.image_encoder_path, the encoder's weights");
  const auto near = nearest(name, known);
  throw UserError(Exit::usage, "data.image_encoder",
                  "'" + name + "' is not known" + (near.empty() ? "" : "; did you mean " + near[0] + "?"),
                  "use auto, or give data.image_encoder_path");
}

/// Whether some samples of any part of the run, of training or of prompts, begin with a picture.
bool begins_with_pictures(const recipe::Recipe& recipe) {
  const auto heads = [](const std::string& kind) {
    const families::GivenPlaces places = families::places_of(kind);
    return places.pictures && places.head;
  };
  const auto drawn = [&](const families::Weighted& kind) { return kind.weight > 0 && heads(kind.name); };
  for (size_t number = 0; number <= recipe.stages.size(); ++number) {
    const recipe::Recipe part = recipe.at_stage(number);
    const bool shared = part.diffusion.conditions.empty() && part.diffusion.image_share > 0;  // else they say it
    if (shared || std::ranges::any_of(part.diffusion.conditions, drawn) || !part.sample.images.empty() ||
        (part.sample.condition != "auto" && heads(part.sample.condition)))
      return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<clip::ClipVision> open_image_encoder(const recipe::Recipe& recipe, const net::Conditions& wanted) {
  if (wanted.clip_dim == 0 || (wanted.image_with_first && !begins_with_pictures(recipe))) return nullptr;
  const std::string& path = recipe.data.image_encoder_path;
  const clip::Config config = path.empty() ? tower_preset(recipe.data.image_encoder, wanted) : tower_config(path);
  if (config.dim != wanted.clip_dim || config.rows() != wanted.clip_rows)
    throw UserError(Exit::usage, "data.image_encoder",
                    "the model takes " + std::to_string(wanted.clip_rows) + " rows of a picture of width " +
                        std::to_string(wanted.clip_dim) + ", this encoder makes " + std::to_string(config.rows()) +
                        " of width " + std::to_string(config.dim),
                    "does data.image_encoder_path belong to this model?");
  return std::make_unique<clip::ClipVision>(config);
}

}  // namespace tessera::job
