#pragma once
// A sample longer than the model's clip, made clip by clip, each continuing the one before. A model with audio input takes
// the last frames so far as "motion", and the audio segment of the next clip. A model that follows videos frame by frame
// is given the last frames of a clip as the first of the next, and what the videos show there.
//
//   const ClipChain chain(job, recipe);
//   ChainedSample made = chain.begin(sound, pictures);              // sample.clips, or the length of what it follows
//   chain.append(made, extra, latent);                              // on rank 0, which has frames
//   extra = chain.next(made, extra, pictures, rank == 0), share(extra, world);      // of the next clip
#include <array>

#include "tessera/comm/comm.h"
#include "tessera/data/audio.h"
#include "tessera/job/job.h"
#include "tessera/prepare/conditioner.h"

namespace tessera::sample {

/// Frames per second of samples: data.fps, or 16 where data.fps = 0 keeps the clips' own.
double sample_fps(const recipe::Recipe::Data& data);

/// What a decoded latent [3, F, H, W] shows: data.frames = 1 is a picture, of which an autoencoder that makes whole groups
/// of frames (the wavelet) has given several.
data::Frames frames_of(const recipe::Recipe::Data& data, const at::Tensor& pixels);

/// What there is of a sample.
struct ChainedSample {
  int64_t clips = 1;               ///< all of them
  int64_t done = 0;                ///< on rank 0: those that are in `frames`
  families::Windows windows = {};  ///< of a model that follows videos
  data::Frames frames = {};
  at::Tensor last = {};  ///< pixels [3, n, H, W] that the next window begins with, until next() has read them
};

class ClipChain {
 public:
  /// Job and recipe must outlive it. Throws UserError (usage) if sample.clips asks for several clips of a model that
  /// makes one.
  ClipChain(const job::Job& job, const recipe::Recipe& recipe);

  /// A sample with this audio, that follows these videos. Throws UserError (usage) if there are several clips and the frame
  /// size is not a multiple of the cells in which motion is packed, or the videos are too short.
  ChainedSample begin(const data::Sound& sound, const prepare::Pictures& pictures) const;
  /// During training a sample has as many clips as its plan counts.
  ChainedSample begin_in_run(const prepare::Pictures& pictures) const;
  /// Seconds of audio that a sample may need; 0: all, because its length decides the number of clips.
  double sound_seconds() const;
  /// Start of clip `clip` in audio and poses, in seconds; the first frame of a later clip is the last of the one
  /// before.
  double start(int64_t clip) const { return static_cast<double>(clip * added_) / fps_; }
  /// The audio segment of the clip.
  data::Sound segment(const data::Sound& sound, int64_t clip) const;

  /// Decodes a clip, whose inputs were `extra`, and appends its new frames.
  void append(ChainedSample& made, const prepare::Extras& extra, const at::Tensor& latent) const;
  /// The inputs of clip `clip`, which follows one with the inputs `extra`, so far as the clips so far tell them. A rank that
  /// is not `first` makes room for them.
  prepare::Extras next(ChainedSample& made, int64_t clip, const prepare::Extras& extra,
                       const prepare::Pictures& pictures, bool first) const;

 private:
  int64_t count(const data::Sound& sound) const;
  int64_t motion_frames(int64_t made) const;
  at::Tensor motion(const data::Frames& made) const;
  std::array<int64_t, 4> motion_shape(int64_t clips) const;
  void check_size() const;

  const job::Job& job_;
  const recipe::Recipe& recipe_;
  const net::Conditions wanted_;
  double fps_ = 16;
  int64_t first_ = 0;  // pixel frames of the first latent frame
  int64_t step_ = 0;   // pixel frames of each further one
  int64_t added_ = 0;  // frames that each further clip adds
};

/// Of rank 0, on all.
void share(const prepare::Extras& extras, comm::Group& world);

}  // namespace tessera::sample
