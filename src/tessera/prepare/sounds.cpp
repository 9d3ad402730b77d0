#include "tessera/prepare/sounds.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/data/probes.h"
#include "tessera/families/registry.h"
#include "tessera/job/codec.h"
#include "tessera/prepare/encoded.h"

namespace tessera::prepare {

namespace {

constexpr const char* kOwnSound = "clip";
// A row is made of the states around it: with so much more sound the last ones are like the others.
constexpr double kMargin = 0.2;  // seconds

const data::Path& sound_file(const data::Item& item) { return item.sound.empty() ? item.path : item.sound; }

/// The sound of a file of its own begins with the video; so does the track in it.
data::Sound clip_sound(const data::Item& item, int rate, double start, double seconds) {
  return data::decode_sound(sound_file(item), {.rate = rate, .start = start, .seconds = seconds});
}

double rate_of(const data::Item& item, const data::ClipSpec& spec) {
  return spec.fps > 0 ? spec.fps : data::probe(item.path).fps;
}

data::Item heard_item(const data::Items& items, const std::string& prompt) {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.caption() == prompt; });
  return found == items.end() ? items.front() : *found;
}

}  // namespace

SoundRows sound_rows(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width, double fps,
                     int64_t rows_a_frame) {
  const int64_t latents = codec.latent_shape(frames, height, width)[1];
  if (latents < 2)
    throw UserError(Exit::usage, "data.frames",
                    "a clip of " + std::to_string(frames) +
                        " frames has one latent frame, which is the reference image " + "of a speech-to-video model",
                    "raise data.frames, or remove single images from the data set");
  // Pixel frames that one more latent frame stands for.
  constexpr int64_t kMore = 16;
  const int64_t step = kMore / (codec.latent_shape(frames + kMore, height, width)[1] - latents);
  SoundRows rows;
  rows.count = rows_a_frame * (latents - 1);
  rows.rate = static_cast<double>(rows_a_frame) * fps / static_cast<double>(step);
  // With a causal autoencoder the picture is one frame, and the reference counts the sound from it; pictures of more
  // frames come before.
  rows.offset = static_cast<double>(frames - step * (latents - 1) - 1) / fps;
  return rows;
}

Listener::Listener(const recipe::Recipe::Data& data, const job::Job& job)
    : data_(data), job_(job), wanted_(job.model->conditions()) {
  const std::string name = audio_encoder_of(data, wanted_);
  if (!name.empty()) encoder_ = job::open_audio_encoder(name);
}

at::Tensor Listener::rows_of(const data::Sound& sound, const SoundRows& rows) const {
  data::Sound part{sound.rate, {}};
  const auto begin = std::min(static_cast<size_t>(std::llround(rows.offset * sound.rate)), sound.samples.size());
  const auto length = static_cast<size_t>(std::llround((rows.seconds() + kMargin) * sound.rate));
  const size_t end = std::min(begin + length, sound.samples.size());
  part.samples.assign(sound.samples.begin() + static_cast<ptrdiff_t>(begin),
                      sound.samples.begin() + static_cast<ptrdiff_t>(end));
  return job::encode_sound(*encoder_, part, rows.rate, rows.count);
}

std::map<std::string, at::Tensor> Listener::extras(const data::Item& item, const data::ClipSpec& spec) const {
  std::map<std::string, at::Tensor> extras;
  if (encoder_) {
    const double fps = rate_of(item, spec);
    const SoundRows rows = sound_rows(*job_.codec, spec.frames, spec.height, spec.width, fps, wanted_.audio_rows);
    const double length = rows.offset + rows.seconds() + kMargin;
    extras["audio"] = rows_of(clip_sound(item, encoder_->sizes().sample_rate, spec.start, length), rows);
  }
  if (wanted_.pose_dim > 0 && !item.pose.empty())
    extras["pose"] = encoded(data_.encoders, [&] { return pose(item.pose, spec); });
  return extras;
}

at::Tensor Listener::pose(const data::Path& file, const data::ClipSpec& spec) const {
  return job::encode_frames(*job_.codec, data::decode_clip(file, spec));
}

std::map<std::string, at::Tensor> Listener::extras(const data::Sound& sound, int64_t frames) const {
  if (!encoder_ || sound.samples.empty()) return {};
  const SoundRows rows =
      sound_rows(*job_.codec, frames, data_.height, data_.width, data_.fps > 0 ? data_.fps : 16, wanted_.audio_rows);
  return {{"audio", rows_of(sound, rows)}};
}

std::string audio_encoder_of(const recipe::Recipe::Data& data, const net::Conditions& wanted) {
  if (wanted.audio_dim == 0) return {};
  const std::string takes = "the model takes " + std::to_string(wanted.audio_layers) + " states of width " +
                            std::to_string(wanted.audio_dim) + " of a speech model, ";
  const std::string& name = data.audio_encoder;
  if (name == "auto") {
    if (const std::string preset = job::audio_preset(wanted.audio_dim, wanted.audio_layers); !preset.empty())
      return preset;
    throw UserError(Exit::usage, "data.audio_encoder", takes + "which no preset has",
                    "give the speech model's folder: data.audio_encoder = \"" + job::released_audio_encoder() + "\"");
  }
  const net::AudioSizes sizes = job::audio_sizes(name);
  if (sizes.dim != wanted.audio_dim || sizes.layers != wanted.audio_layers)
    throw UserError(Exit::usage, "data.audio_encoder",
                    takes + name + " makes " + std::to_string(sizes.layers) + " of width " + std::to_string(sizes.dim),
                    "does data.audio_encoder belong to this model?");
  return name;
}

std::vector<data::RowFile> sound_files(const data::Item& item, const net::Conditions& wanted) {
  std::vector<data::RowFile> files;
  const auto add = [&](const char* role, const data::Path& path) {
    if (!path.empty()) files.emplace_back(role, path);
  };
  if (wanted.audio_dim > 0) add("sound", item.sound);
  if (wanted.pose_dim > 0) add("pose", item.pose);
  return files;
}

std::vector<data::Sound> prompt_sounds(const recipe::Recipe::Data& data, const recipe::Recipe::Sample& sample,
                                       const std::vector<std::string>& prompts,
                                       const std::function<data::Items()>& clips, const net::Conditions& wanted,
                                       std::optional<double> wanted_seconds) {
  const std::vector<std::string>& files = sample.sounds;
  if (wanted.audio_dim == 0) {
    if (!files.empty())
      throw UserError(Exit::usage, "sample.audio", "the model has no audio input",
                      "leave sample.audio out, or sample with a speech-to-video model");
    return {};
  }
  const double fps = data.fps > 0 ? data.fps : 16;
  const int rate = job::audio_sizes(audio_encoder_of(data, wanted)).sample_rate;
  const double seconds = wanted_seconds.value_or(static_cast<double>(data.frames) / fps + kMargin);
  std::vector<data::Sound> sounds;
  data::Items items;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::string file = files.empty() ? kOwnSound : files[p % files.size()];
    if (file != kOwnSound) {
      sounds.push_back(data::decode_sound(file, {.rate = rate, .start = 0, .seconds = seconds}));
      continue;
    }
    if (items.empty()) items = clips();
    if (items.empty())
      throw UserError(Exit::usage, "sample.audio", "the model needs audio, and there is no clip to take it from",
                      "give --sample.audio FILE");
    sounds.push_back(clip_sound(heard_item(items, prompts[p]), rate, 0, seconds));
  }
  return sounds;
}

std::vector<data::Path> prompt_poses(const recipe::Recipe::Sample& sample, const std::vector<std::string>& prompts,
                                     const std::function<data::Items()>& clips, const net::Conditions& wanted) {
  const std::vector<std::string>& files = sample.poses;
  std::vector<data::Path> poses(prompts.size());
  const bool guided = std::ranges::find(wanted.guides, "pose") != wanted.guides.end();  // prompt_pictures() has them
  if (files.empty() || guided) return poses;
  if (wanted.pose_dim == 0)
    throw UserError(Exit::usage, "sample.pose", "the model takes no poses",
                    "leave sample.pose out, or sample with a speech-to-video model");
  data::Items items;
  for (size_t p = 0; p < prompts.size(); ++p) {
    poses[p] = files[p % files.size()];
    if (poses[p] != kOwnSound) continue;
    if (items.empty()) items = clips();
    poses[p] = items.empty() ? data::Path() : heard_item(items, prompts[p]).pose;
    if (poses[p].empty())
      throw UserError(
          Exit::usage, "sample.pose", "\"clip\": the row of '" + prompts[p] + "' names no pose video",
          "add a column " + families::column_names({}, "pose").front() + " to the table, or give --sample.pose FILE");
  }
  return poses;
}

}  // namespace tessera::prepare
