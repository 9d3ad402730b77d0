#include "tessera/sample/clip_chain.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/job/codec.h"

namespace tessera::sample {

double sample_fps(const recipe::Recipe::Data& data) {
  constexpr double kUsualFps = 16;
  return data.fps > 0 ? data.fps : kUsualFps;
}

data::Frames frames_of(const recipe::Recipe::Data& data, const at::Tensor& pixels) {
  const int64_t shown = data.frames == 1 ? 1 : pixels.size(1);
  return job::to_frames(pixels.slice(1, 0, shown), sample_fps(data));
}

namespace {

/// Latent frames of motion that the released model takes (models/wan/s2v_network.h), and the size of the latent cells in
/// which the oldest of them are packed.
constexpr int64_t kRemembered = 19, kPacked = 8;
/// Extra audio around a clip, because audio features depend on their neighbourhood.
constexpr double kMoreSound = 0.2;
/// A remainder of audio too short for a clip: files decode to slightly more than their length.
constexpr double kLeftOver = 0.05;

constexpr const char* kMotion = "motion";

void add(data::Frames& made, const data::Frames& more) {
  if (made.count == 0) made = {0, more.height, more.width, more.fps, {}};
  made.rgb.insert(made.rgb.end(), more.rgb.begin(), more.rgb.end());
  made.count += more.count;
}

}  // namespace

ClipChain::ClipChain(const job::Job& job, const recipe::Recipe& recipe)
    : job_(job), recipe_(recipe), wanted_(job.model->conditions()), fps_(sample_fps(recipe.data)) {
  if (recipe.sample.clips == 1 || wanted_.goes_on) return;
  if (wanted_.audio_dim == 0)
    throw UserError(Exit::usage, "sample.clips",
                    recipe.values.at("sample.clips") + ": the model makes one clip and cannot continue another",
                    "leave sample.clips out, or sample with a model that is spoken to or follows a face");
  if (recipe.sample.overlap != 1)
    throw UserError(Exit::usage, "sample.overlap",
                    "the model goes on from its clip's last " + std::to_string(kRemembered) + " latent frames",
                    "leave sample.overlap out");
  const int64_t frames = recipe.data.frames, height = recipe.data.height, width = recipe.data.width;
  constexpr int64_t kMore = 16;  // pixel frames; a whole number of latent frames for any autoencoder
  const int64_t latents = job.codec->latent_shape(frames, height, width)[1];
  step_ = kMore / (job.codec->latent_shape(frames + kMore, height, width)[1] - latents);
  first_ = frames - step_ * (latents - 1);
  added_ = frames - first_;
}

ChainedSample ClipChain::begin(const data::Sound& sound, const prepare::Pictures& pictures) const {
  if (!wanted_.goes_on) return {.clips = count(sound)};
  const families::Windows windows =
      prepare::sample_windows(recipe_.sample, pictures, prepare::sampled_clip(recipe_.data), wanted_);
  return {.clips = windows.count(), .windows = windows};
}

ChainedSample ClipChain::begin_in_run(const prepare::Pictures& pictures) const {
  if (!wanted_.goes_on) return {};
  ChainedSample sample = begin({}, pictures);
  sample.clips = job::sample_clips(recipe_.sample, wanted_);
  sample.windows.frames = std::min(sample.windows.frames, sample.windows.end(sample.clips - 1));
  return sample;
}

int64_t ClipChain::count(const data::Sound& sound) const {
  int64_t clips = recipe_.sample.clips;
  if (clips == 0) {
    const double clip = static_cast<double>(added_) / fps_,
                 left = sound.seconds() - static_cast<double>(first_ - 1) / fps_ - kLeftOver;
    clips = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(left / clip)));
  }
  if (clips > 1) check_size();
  return clips;
}

/// Motion frames are packed in cells that must tile the latent.
void ClipChain::check_size() const {
  const int64_t height = recipe_.data.height, width = recipe_.data.width;
  const auto latent = job_.codec->latent_shape(recipe_.data.frames, height, width);
  if (latent[2] % kPacked == 0 && latent[3] % kPacked == 0) return;
  throw UserError(
      Exit::usage, "data.size",
      std::to_string(height) + "," + std::to_string(width) + " is a latent of " + std::to_string(latent[2]) + " x " +
          std::to_string(latent[3]) + ": clips that continue others need multiples of " + std::to_string(kPacked),
      "use multiples of " + std::to_string(kPacked * height / latent[2]) + " pixels, or one clip: sample.clips = 1");
}

double ClipChain::sound_seconds() const {
  if (recipe_.sample.clips == 0) return 0;
  return static_cast<double>(recipe_.data.frames + (recipe_.sample.clips - 1) * added_) / fps_ + kMoreSound;
}

data::Sound ClipChain::segment(const data::Sound& sound, int64_t clip) const {
  const auto place = [&](double seconds) {
    return std::min(static_cast<size_t>(std::llround(seconds * sound.rate)), sound.samples.size());
  };
  const double begin = start(clip);
  const size_t first = place(begin), last = place(begin + static_cast<double>(recipe_.data.frames) / fps_ + kMoreSound);
  const auto at = [&](size_t i) { return sound.samples.begin() + static_cast<ptrdiff_t>(i); };
  return {sound.rate, {at(first), at(last)}};
}

/// The number of `made` frames that become motion: whole latent frames, counted from the end.
int64_t ClipChain::motion_frames(int64_t made) const {
  return first_ + step_ * std::min<int64_t>(kRemembered - 1, (made - first_) / step_);
}

std::array<int64_t, 4> ClipChain::motion_shape(int64_t clips) const {
  return job_.codec->latent_shape(motion_frames(recipe_.data.frames + (clips - 1) * added_), recipe_.data.height,
                                  recipe_.data.width);
}

at::Tensor ClipChain::motion(const data::Frames& made) const {
  data::Frames last = made;
  last.count = static_cast<int>(motion_frames(made.count));
  last.rgb.assign(made.frame(made.count - last.count), made.rgb.data() + made.rgb.size());
  return job::encode_frames(*job_.codec, last);
}

void ClipChain::append(ChainedSample& made, const prepare::Extras& extra, const at::Tensor& latent) const {
  const families::Windows& windows = made.windows;
  const int64_t clip = made.done;
  if (windows.length > 0) {
    const at::Tensor pixels = job::decode(*job_.codec, latent);
    const int64_t given = clip > 0 ? windows.overlap : 0, shown = windows.frames - windows.begin(clip);
    const data::Frames more = job::to_frames(pixels.slice(1, given, std::min(windows.length, shown)), fps_);
    if (clip + 1 < made.clips)
      made.last = pixels.slice(1, windows.length - windows.overlap, windows.length).clamp(-1, 1);
    add(made.frames, more);
  } else if (clip == 0) {
    add(made.frames, frames_of(recipe_.data, job::decode(*job_.codec, latent)));
  } else {
    // The autoencoder is causal, so the new frames are decoded after the motion frames that they continue.
    const at::Tensor pixels = job::decode(*job_.codec, at::cat({extra.at(kMotion), latent.slice(1, 1)}, 1));
    add(made.frames, job::to_frames(pixels.slice(1, pixels.size(1) - added_), made.frames.fps));
  }
  ++made.done;
}

prepare::Extras ClipChain::next(ChainedSample& made, int64_t clip, const prepare::Extras& extra,
                                const prepare::Pictures& pictures, bool first) const {
  if (made.windows.length == 0)
    return {{kMotion, first ? motion(made.frames) : at::empty(motion_shape(clip), at::kFloat)}};
  prepare::Extras next;
  if (first) {
    net::Guides guides = prepare::read_guides(pictures, prepare::sampled_clip(recipe_.data), wanted_,
                                              recipe_.data.references, made.windows, clip);
    guides.sampled = true, guides.before = std::move(made.last);
    next = job_.model->guide(*job_.codec, guides);
  } else {
    for (const auto& [name, value] : extra)
      if (name != wanted_.image_extra) next[name] = at::zeros_like(value);
  }
  return next;
}

void share(const prepare::Extras& extras, comm::Group& world) {
  for (const auto& [name, value] : extras) world.broadcast(value, 0);
}

}  // namespace tessera::sample
