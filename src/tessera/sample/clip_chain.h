#pragma once
// A sample longer than the model's clip: it is made clip by clip, each going on where the one before ended. A model
// that hears takes the last frames of what there is as "motion", and the part of the sound that is the next clip's.
//
//   const ClipChain chain(*job.codec, recipe, wanted);
//   const int64_t clips = chain.count(sound);                 // sample.clips, or as many as the sound lasts
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
  /// Codec and recipe outlive it. Throws UserError (usage) where sample.clips wants more of a model that makes one
  /// clip.
  ClipChain(const net::VideoCodec& codec, const recipe::Recipe& recipe, const net::Conditions& wanted);

  /// Clips of a sample that follows this sound. Throws UserError (usage) where they are several and the size of the
  /// picture does not divide into the cells that motion is packed in.
  int64_t count(const data::Sound& sound) const;
  /// Seconds of sound that a sample may need; 0: all there are, their length decides.
  double sound_seconds() const;
  /// Where clip `clip` begins in sound and poses, in seconds; the first frame of a later one is the last of the one
  /// before it.
  double start(int64_t clip) const { return static_cast<double>(clip * added_) / fps_; }
  /// What of the sound is the clip's.
  data::Sound heard(const data::Sound& sound, int64_t clip) const;

  /// Latent of the last frames made, at most 19 latent frames [C, M, h, w].
  at::Tensor motion(const data::Frames& made) const;
  /// Shape of that after `clips` clips.
  std::array<int64_t, 4> motion_shape(int64_t clips) const;
  /// Decodes a further clip behind the motion it was made with and adds its frames, all but those of the picture.
  void append(data::Frames& made, const at::Tensor& motion, const at::Tensor& latent) const;

 private:
  int64_t motion_frames(int64_t made) const;
  void check_size() const;

  const net::VideoCodec& codec_;
  const recipe::Recipe& recipe_;
  double fps_ = 16;
  int64_t first_ = 0;  // frames that the first latent frame stands for
  int64_t step_ = 0;   // and each further one
  int64_t added_ = 0;  // frames that each further clip adds
};

}  // namespace tessera::sample
