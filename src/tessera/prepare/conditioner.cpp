#include "tessera/prepare/conditioner.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/data/video.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/job/codec.h"
#include "tessera/job/encoders.h"

namespace tessera::prepare {

namespace {

std::string image_text(const recipe::Recipe::Data& data, const job::Job& job) {
  if (!job.image) return {};
  const std::string text = "|" + job.image->fingerprint(), &weights = data.image_encoder_path;
  return weights.empty() ? text : text + "|" + checkpoint::fingerprint(checkpoint::open_weights(weights));
}

}  // namespace

std::string conditioner_fingerprint(const recipe::Recipe::Data& data, const recipe::Recipe::Diffusion& diffusion,
                                    const job::Job& job) {
  const net::Conditions wanted = job.model->conditions();
  const std::string seen = wanted.image_with_first ? image_text(data, job) : "";
  if (const std::string given = families::given_text(diffusion.conditions); !given.empty())
    return "|given " + given + seen;
  if (families::any_noisy(diffusion.mask_types)) return "|given noisy";
  if (wanted.audio_dim > 0) return "|" + job::audio_fingerprint(audio_encoder_of(data, wanted));
  std::string text = "|guides " + std::to_string(data.references);
  if (wanted.guides.empty()) {
    if (!wanted.takes_images()) return seen;
    text = "|y" + std::to_string(wanted.mask_channels) + (wanted.last_image ? "+last" : "") +
           (wanted.control_dim > 0 ? "+control" : "") + (wanted.reference_dim > 0 ? "+reference" : "") +
           (wanted.camera_scale > 0 ? "+camera" : "");
  }
  return text + image_text(data, job);
}

Conditioner::Conditioner(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm,
                         int rank)
    : recipe_(recipe), job_(job), wanted_(job.model->conditions()), listener_(recipe.data, job) {
  if (!job.image) return;
  const job::HeldWeights held = job::image_storage(recipe.data, recipe.plan);
  run_ = std::make_unique<EncoderRun>(job.image->units(), job.image->fingerprint(), mesh, comm, rank, held);
  if (held.dtype != DType::f32 || run_->any_on_host()) log::info(run_->held_text("image encoder", held, mesh));
  if (recipe.data.image_encoder_path.empty())
    initialise(*run_, *job.image, 0);
  else
    load_tower(*run_, checkpoint::open_weights(recipe.data.image_encoder_path));
}

at::Tensor Conditioner::look(const Pictures& pictures) {
  if (!run_) return {};
  const int64_t side = job_.image->config().image_size;
  const at::Tensor nothing = at::zeros({3, side, side}, at::kFloat);
  std::vector<at::Tensor> seen;
  const at::Tensor& shown = pictures.shown.defined() ? pictures.shown : pictures.first;
  seen.push_back(image_features(*run_, *job_.image, shown.defined() ? shown : nothing));
  if (wanted_.last_image) {
    const at::Tensor& last = pictures.last.defined() ? pictures.last : pictures.first;
    seen.push_back(image_features(*run_, *job_.image, last.defined() ? last : nothing));
  }
  return shown.defined() ? at::cat(seen).contiguous() : at::Tensor();
}

Extras Conditioner::extras(const Pictures& pictures, const at::Tensor& seen, int64_t frames) const {
  Extras extras;
  if (!wanted_.takes_images()) {
    if (seen.defined()) extras[wanted_.image_extra] = seen;
    return extras;
  }
  if (const at::Tensor y = image_input(*job_.codec, pictures, frames, wanted_); y.defined()) extras["y"] = y;
  // a given first frame stands in the noisy latent as well, without noise, where the model has a timestep a token
  if (wanted_.clean_first && pictures.first.defined()) extras["image_latent"] = first_latent(pictures.first);
  if (seen.defined())
    extras[wanted_.image_extra] = seen;
  else if (wanted_.control_dim > 0 && wanted_.clip_dim > 0)  // no picture is features of zeros
    extras[wanted_.image_extra] = at::zeros({wanted_.clip_rows, wanted_.clip_dim}, at::kFloat);
  return extras;
}

Extras Conditioner::extras(const data::Item& item, const data::ClipSpec& spec, const MaybeDraw& draw) const {
  Extras extras = listener_.extras(item, spec);
  if (!wanted_.guides.empty())
    return job_.model->guide(*job_.codec, shown_guides(item, spec, wanted_, recipe_.data.references, draw));
  if (wanted_.always_clean && !item.first_image.empty())
    extras["image_latent"] = first_latent(clip_pictures(item, spec, wanted_).first);
  extras.merge(control_extras(*job_.codec, shown_controls(item, spec, wanted_, draw), spec, wanted_));
  return extras;
}

at::Tensor Conditioner::first_latent(const at::Tensor& picture) const {
  return job_.codec->encode(picture.unsqueeze(1)).contiguous();
}

Extras Conditioner::with_seen(Extras extras, const Pictures& pictures) {
  if (const at::Tensor seen = wanted_.image_with_first ? look(pictures) : at::Tensor(); seen.defined())
    extras[wanted_.image_extra] = seen;
  return extras;
}

/// So many frames of a video, its first or, where the kind says so, its last.
data::Frames Conditioner::video_part(const std::string& kind, const data::Path& video, int64_t count) const {
  data::ClipSpec spec = sampled_clip(recipe_.data);
  spec.frames = static_cast<int>(count);
  const data::VideoInfo info = data::probe(video);
  const int64_t there = data::frames_at(info, recipe_.data.fps);
  check_input(there >= count, "sample.video",
              video.string() + " has " + std::to_string(there) + " frames, " + kind + " takes " + std::to_string(count),
              "give a longer one");
  const double rate = recipe_.data.fps > 0 ? recipe_.data.fps : info.fps;
  if (families::places_of(kind).tail) spec.start = static_cast<double>(there - count) / rate;
  return data::decode_clip(video, spec);
}

/// What a model that reads_beside() is given of a sample's frames: the caption that they read comes with the prompt.
Extras Conditioner::given_beside(const std::string& kind, const Pictures& pictures, int64_t frames) const {
  const families::GivenPlaces places = families::places_of(kind);
  const auto latent = job_.codec->latent_shape(frames, recipe_.data.height, recipe_.data.width);
  if (latent[1] < 2) return {};  // a picture
  const at::Tensor index = diffusion::frame_index(families::frames_beside(kind, latent[1], {}));
  at::Tensor whole;
  if (places.pictures) {
    whole = at::zeros(latent, at::kFloat);
    if (places.head) whole.narrow(1, 0, 1).copy_(first_latent(pictures.first));
    if (places.tail) whole.narrow(1, latent[1] - 1, 1).copy_(first_latent(pictures.last));
  } else {
    whole = job::encode_frames(*job_.codec, video_part(kind, pictures.video, frames));
  }
  return {{"mask_index", index}, {"cond", diffusion::beside_input("keep", whole, index, {}, {}).cond}};
}

/// cond of a sample that begins or ends with pictures, or with a video.
at::Tensor Conditioner::given(const std::string& kind, const Pictures& pictures, int64_t frames) const {
  const families::GivenPlaces places = families::places_of(kind);
  const auto latent = job_.codec->latent_shape(frames, recipe_.data.height, recipe_.data.width);
  const bool causal = families::is_causal(frames, latent[1]);
  std::vector<at::Tensor> references;
  if (places.pictures) {
    if (places.head) references.push_back(first_latent(pictures.first));
    if (places.tail) references.push_back(first_latent(pictures.last));
    return diffusion::reference_condition(kind, latent, references, causal);
  }
  const int64_t latents = families::latents_given(kind, causal), each = frames / latent[1];
  const int64_t count =
      causal ? frames - (latent[1] - latents) * ((frames - 1) / std::max<int64_t>(latent[1] - 1, 1)) : latents * each;
  check_input(
      latents < latent[1], "sample.condition",
      kind + " gives " + std::to_string(latents) + " of the sample's " + std::to_string(latent[1]) + " latent frames",
      "sample longer videos: data.frames above " + std::to_string(count));
  references.push_back(job::encode_frames(*job_.codec, video_part(kind, pictures.video, count)));
  return diffusion::reference_condition(kind, latent, references, causal);
}

Extras Conditioner::for_sampling(const Pictures& pictures, const data::Sound& sound, int64_t frames,
                                 const data::Path& poses, double pose_start, const Controls& controls) {
  const data::ClipSpec spec = sampled_clip(recipe_.data);
  if (wanted_.takes_images()) {
    Pictures seen = pictures;
    if (wanted_.control_dim > 0 && !controls.reference.empty()) {  // which the image encoder sees, as in training
      data::Item row;
      row.references = {controls.reference};
      seen.shown = clip_pictures(row, spec, wanted_).shown;
    }
    Extras extras = this->extras(seen, look(seen), frames);
    extras.merge(control_extras(*job_.codec, controls, spec, wanted_));
    return extras;
  }
  if (const std::string kind = sampled_condition(recipe_.diffusion, recipe_.sample, wanted_);
      families::places_of(kind).any()) {
    if (diffusion::reads_beside(wanted_)) return given_beside(kind, pictures, frames);
    return with_seen({{"cond", given(kind, pictures, frames)}}, pictures);
  }
  if (!wanted_.guides.empty()) {
    net::Guides guides = read_guides(pictures, spec, wanted_, recipe_.data.references,
                                     sample_windows(recipe_.sample, pictures, spec, wanted_));
    guides.sampled = true;
    Extras extras = job_.model->guide(*job_.codec, guides);
    if (run_) extras[wanted_.image_extra] = look({.first = {}, .last = {}, .shown = job_.model->seen(guides)});
    return extras;
  }
  Extras extras = listener_.extras(sound, frames);
  if (pictures.first.defined() && wanted_.clean_first) extras["image_latent"] = first_latent(pictures.first);
  if (!poses.empty())
    extras["pose"] = listener_.pose(poses, {static_cast<int>(frames), static_cast<int>(recipe_.data.height),
                                            static_cast<int>(recipe_.data.width), recipe_.data.fps, pose_start});
  return with_seen(std::move(extras), pictures);
}

}  // namespace tessera::prepare
