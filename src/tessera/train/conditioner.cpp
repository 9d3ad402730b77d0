#include "tessera/train/conditioner.h"

#include "tessera/base/check.h"
#include "tessera/models/identify.h"

namespace tessera::train {

namespace {

namespace clip = models::clip;
namespace fs = std::filesystem;

/// The official release has the tower in a file of this name, diffusers in a folder.
checkpoint::WeightSet open_tower(const fs::path& path) {
  if (fs::is_directory(path)) {
    if (fs::is_directory(path / "image_encoder")) return checkpoint::open_weights(path / "image_encoder");
    for (const auto& item : fs::directory_iterator(path))
      if (item.path().filename().string().starts_with("models_clip")) return checkpoint::open_weights(item.path());
  }
  return checkpoint::open_weights(path);
}

fs::path tower_config_beside(const fs::path& path) {
  for (const fs::path& place : {path / "image_encoder/config.json", path / "config.json"})
    if (fs::exists(place)) return place;
  return {};
}

/// A model folder's own config.json is its transformer's.
bool is_tower_config(const std::string& text) {
  return text.find("\"image_size\"") != text.npos && text.find("\"patch_size\"") != text.npos;
}

clip::Config tower_config(const fs::path& path) {
  if (const fs::path file = tower_config_beside(path); !file.empty()) {
    const std::string text = checkpoint::read_text(file);
    if (is_tower_config(text)) return clip::parse_config(text, file.string());
  }
  const auto stored = stored_shapes(open_tower(path));
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
                    "the model takes " + std::to_string(wanted.clip_rows) + " CLIP rows of width " +
                        std::to_string(wanted.clip_dim) + ", which no preset has",
                    "give data.image_encoder_path, the encoder's weights");
  const auto near = nearest(name, known);
  throw UserError(Exit::usage, "data.image_encoder",
                  "'" + name + "' is not known" + (near.empty() ? "" : "; did you mean " + near[0] + "?"),
                  "use auto, or give data.image_encoder_path");
}

}  // namespace

std::unique_ptr<clip::ClipVision> open_image_encoder(const Recipe& recipe, const net::Conditions& wanted) {
  if (wanted.clip_dim == 0) return nullptr;
  const std::string& path = recipe.data.image_encoder_path;
  const clip::Config config = path.empty() ? tower_preset(recipe.data.image_encoder, wanted) : tower_config(path);
  if (config.dim != wanted.clip_dim || config.rows() != wanted.clip_rows)
    throw UserError(Exit::usage, "data.image_encoder",
                    "the model takes " + std::to_string(wanted.clip_rows) + " CLIP rows of width " +
                        std::to_string(wanted.clip_dim) + ", this encoder makes " + std::to_string(config.rows()) +
                        " of width " + std::to_string(config.dim),
                    "does data.image_encoder_path belong to this model?");
  return std::make_unique<clip::ClipVision>(config);
}

std::string conditioner_fingerprint(const Recipe& recipe, const Job& job) {
  const net::Conditions wanted = job.model->conditions();
  if (wanted.audio_dim > 0) return "|" + audio_fingerprint(audio_encoder_of(recipe, wanted));
  if (!wanted.pictures()) return {};
  std::string text = "|y" + std::to_string(wanted.mask_channels) + (wanted.last_picture ? "+last" : "");
  if (!job.image) return text;
  text += "|" + job.image->fingerprint();
  if (recipe.data.image_encoder_path.empty()) return text;
  const checkpoint::WeightSet weights = open_tower(recipe.data.image_encoder_path);
  for (const auto& file : weights.files())
    text += "|" + file.path().filename().string() + ":" + std::to_string(fs::file_size(file.path()));
  return text;
}

Conditioner::Conditioner(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank)
    : recipe_(recipe), job_(job), wanted_(job.model->conditions()), listener_(recipe, job) {
  if (!job.image) return;
  run_ = std::make_unique<ClipRun>(*job.image, mesh, comm, rank);
  if (recipe.data.image_encoder_path.empty())
    run_->initialise(0);
  else
    run_->load(open_tower(recipe.data.image_encoder_path));
}

at::Tensor Conditioner::look(const Pictures& pictures) {
  if (!run_) return {};
  const int64_t side = job_.image->config().image_size;
  const at::Tensor nothing = at::zeros({3, side, side}, at::kFloat);
  std::vector<at::Tensor> seen;
  seen.push_back(run_->features(pictures.first.defined() ? pictures.first : nothing));
  if (wanted_.last_picture) {
    const at::Tensor& last = pictures.last.defined() ? pictures.last : pictures.first;
    seen.push_back(run_->features(last.defined() ? last : nothing));
  }
  return pictures.first.defined() ? at::cat(seen).contiguous() : at::Tensor();
}

Extras Conditioner::extras(const Pictures& pictures, const at::Tensor& seen, int64_t frames) const {
  Extras extras;
  if (!wanted_.pictures()) return extras;
  extras["y"] = picture_latent(*job_.codec, pictures, frames, wanted_.mask_channels);
  if (seen.defined()) extras["clip_fea"] = seen;
  return extras;
}

Extras Conditioner::extras(const data::Item& item, const data::ClipSpec& spec) const {
  Extras extras = listener_.extras(item, spec);
  if (wanted_.always_clean && !item.first_picture.empty())
    extras["image_latent"] = first_latent(clip_pictures(item, spec, wanted_).first);
  return extras;
}

at::Tensor Conditioner::first_latent(const at::Tensor& picture) const {
  return job_.codec->encode(picture.unsqueeze(1)).contiguous();
}

Extras Conditioner::for_sampling(const Pictures& pictures, const data::Sound& sound, int64_t frames,
                                 const data::Path& poses, double pose_start) {
  if (wanted_.pictures()) return extras(pictures, look(pictures), frames);
  Extras extras = listener_.extras(sound, frames);
  if (pictures.first.defined() && wanted_.clean_first) extras["image_latent"] = first_latent(pictures.first);
  if (!poses.empty())
    extras["pose"] = listener_.pose(poses, {static_cast<int>(frames), static_cast<int>(recipe_.data.height),
                                            static_cast<int>(recipe_.data.width), recipe_.data.fps, pose_start});
  return extras;
}

}  // namespace tessera::train
