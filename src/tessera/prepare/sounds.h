#pragma once
// What a model that hears takes beside pictures: sound and poses of clips and of prompts, as extras of samples.
//
//   Listener listener(recipe, job);                           // loads the speech model where the model wants sound
//   extras = listener.extras(item, plan.spec(clip));          // audio [25, 4 (f - 1), dim]; pose where the row has one
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/job/audio_encoder.h"
#include "tessera/job/job.h"

namespace tessera::prepare {

/// Rows of sound that belong to a clip: `count` of them, `rate` a second, the first `offset` seconds after its first
/// frame. They are those of all latent frames but the first, which stands for a picture.
struct SoundRows {
  int64_t count = 0;
  double rate = 0, offset = 0;
  double seconds() const { return static_cast<double>(count) / rate; }
};
/// Throws UserError (usage) for a clip of one latent frame, which has no place for sound.
SoundRows sound_rows(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width, double fps,
                     int64_t rows_a_frame);

class Listener {
 public:
  Listener(const recipe::Recipe& recipe, const job::Job& job);

  /// Of a row's sound (its own file, else the clip's track) and pose. Throws UserError (input) naming the file: none
  /// has a track, it ends before the clip begins.
  std::map<std::string, at::Tensor> extras(const data::Item& item, const data::ClipSpec& spec) const;
  /// Of a sound that begins with the first frame of a sample; nothing of one that has ended, which is silence.
  std::map<std::string, at::Tensor> extras(const data::Sound& sound, int64_t frames) const;
  /// Latent of a video of poses. Throws UserError (input) naming the file.
  at::Tensor pose(const data::Path& file, const data::ClipSpec& spec) const;

 private:
  at::Tensor rows_of(const data::Sound& sound, const SoundRows& rows) const;

  const recipe::Recipe& recipe_;
  const job::Job& job_;
  const net::Conditions wanted_;
  std::unique_ptr<net::AudioEncoder> encoder_;
};

/// The speech model's name for this recipe: data.audio_encoder, or with auto the preset of the model's width. Empty for
/// a model that hears nothing. Throws UserError (usage) where they do not fit each other.
std::string audio_encoder_of(const recipe::Recipe& recipe, const net::Conditions& wanted);

/// What a row's files of sound and pose add to how its extras were made, for cache keys.
std::string sound_stamp(const data::Item& item, const net::Conditions& wanted);

/// Each prompt's: those of sample.audio in turn ("clip": of the prompt's own clip, which is also meant where it is
/// empty), `seconds` of them, 0: to the end; nothing: those of one clip. None for a model that hears nothing. Throws
/// UserError (usage, input).
std::vector<data::Sound> prompt_sounds(const recipe::Recipe& recipe, const std::vector<std::string>& prompts,
                                       const std::function<std::vector<data::Item>()>& clips,
                                       const net::Conditions& wanted, std::optional<double> seconds = {});

/// Each prompt's video of poses: those of sample.pose in turn ("clip": of the prompt's row). Empty where there is none.
/// Throws UserError (usage) for a model that takes none, and where the row has none.
std::vector<data::Path> prompt_poses(const recipe::Recipe& recipe, const std::vector<std::string>& prompts,
                                     const std::function<std::vector<data::Item>()>& clips,
                                     const net::Conditions& wanted);

}  // namespace tessera::prepare
