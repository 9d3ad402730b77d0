#pragma once
// A sample longer than the model's clip, made clip by clip, each continuing the one before. A model with audio input
// takes the last frames so far as "motion", and the audio segment of the next clip.
//
//   const ClipChain chain(*job.codec, recipe, wanted);
//   const int64_t clips = chain.count(sound);                 // sample.clips, or the length of the audio
//   frames = to_frames(codec.decode(first_latent));
//   const at::Tensor motion = chain.motion(frames);           // extra "motion" of the next clip
//   chain.append(frames, motion, next_latent);
#include <array>

#include "tessera/data/audio.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::sample {

class ClipChain {
 public:
  /// Codec and recipe must outlive it. Throws UserError (usage) if sample.clips asks for several clips of a model that
  /// makes one.
  ClipChain(const net::VideoCodec& codec, const recipe::Recipe& recipe, const net::Conditions& wanted);

  /// Number of clips of a sample with this audio. Throws UserError (usage) if there are several and the frame size is
  /// not a multiple of the cells in which motion is packed.
  int64_t count(const data::Sound& sound) const;
  /// Seconds of audio that a sample may need; 0: all, because its length decides the number of clips.
  double sound_seconds() const;
  /// Start of clip `clip` in audio and poses, in seconds; the first frame of a later clip is the last of the one
  /// before.
  double start(int64_t clip) const { return static_cast<double>(clip * added_) / fps_; }
  /// The audio segment of the clip.
  data::Sound segment(const data::Sound& sound, int64_t clip) const;

  /// Latent of the last frames so far, at most 19 latent frames [C, M, h, w].
  at::Tensor motion(const data::Frames& made) const;
  /// Shape of the motion latent after `clips` clips.
  std::array<int64_t, 4> motion_shape(int64_t clips) const;
  /// Decodes a further clip together with its motion frames and appends its new frames.
  void append(data::Frames& made, const at::Tensor& motion, const at::Tensor& latent) const;

 private:
  int64_t motion_frames(int64_t made) const;
  void check_size() const;

  const net::VideoCodec& codec_;
  const recipe::Recipe& recipe_;
  double fps_ = 16;
  int64_t first_ = 0;  // pixel frames of the first latent frame
  int64_t step_ = 0;   // pixel frames of each further one
  int64_t added_ = 0;  // frames that each further clip adds
};

}  // namespace tessera::sample
