#include "tessera/sample/clip_chain.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/job/codec.h"
#include "tessera/sample/validation.h"

namespace tessera::sample {

namespace {

/// Latent frames of motion that the released model takes (models/wan/s2v_tokens.h), and the size of the latent cells in
/// which the oldest of them are packed.
constexpr int64_t kRemembered = 19, kPacked = 8;
/// Extra audio around a clip, because audio features depend on their neighbourhood.
constexpr double kMoreSound = 0.2;
/// A remainder of audio too short for a clip: files decode to slightly more than their length.
constexpr double kLeftOver = 0.05;

}  // namespace

ClipChain::ClipChain(const net::VideoCodec& codec, const recipe::Recipe& recipe, const net::Conditions& wanted)
    : codec_(codec), recipe_(recipe), fps_(sample_fps(recipe.data)) {
  if (recipe.sample.clips == 1) return;
  if (wanted.audio_dim == 0)
    throw UserError(Exit::usage, "sample.clips",
                    recipe.values.at("sample.clips") + ": the model makes one clip and cannot continue another",
                    "leave sample.clips out, or sample with a speech-to-video model");
  const int64_t frames = recipe.data.frames, height = recipe.data.height, width = recipe.data.width;
  constexpr int64_t kMore = 16;  // pixel frames; a whole number of latent frames for any autoencoder
  const int64_t latents = codec.latent_shape(frames, height, width)[1];
  step_ = kMore / (codec.latent_shape(frames + kMore, height, width)[1] - latents);
  first_ = frames - step_ * (latents - 1);
  added_ = frames - first_;
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
  const auto latent = codec_.latent_shape(recipe_.data.frames, height, width);
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
  return codec_.latent_shape(motion_frames(recipe_.data.frames + (clips - 1) * added_), recipe_.data.height,
                             recipe_.data.width);
}

at::Tensor ClipChain::motion(const data::Frames& made) const {
  data::Frames last = made;
  last.count = static_cast<int>(motion_frames(made.count));
  last.rgb.assign(made.frame(made.count - last.count), made.rgb.data() + made.rgb.size());
  return job::encode_frames(codec_, last);
}

void ClipChain::append(data::Frames& made, const at::Tensor& motion, const at::Tensor& latent) const {
  // The autoencoder is causal, so the new frames are decoded after the motion frames that they continue.
  const at::Tensor pixels = job::decode(codec_, at::cat({motion, latent.slice(1, 1)}, 1));
  const data::Frames more = job::to_frames(pixels.slice(1, pixels.size(1) - added_), made.fps);
  made.rgb.insert(made.rgb.end(), more.rgb.begin(), more.rgb.end());
  made.count += more.count;
}

}  // namespace tessera::sample
