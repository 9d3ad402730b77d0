#pragma once
// The audio and pose conditioning of speech-to-video models, for clips and for prompts, as extras of samples.
//
//   Listener listener(recipe.data, job);                           // loads the speech model if the model has an audio input
//   extras = listener.extras(item, plan.spec(clip));          // audio [25, 4 (f - 1), dim]; pose where the row has one
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/cache.h"
#include "tessera/data/dataset.h"
#include "tessera/job/encoders.h"
#include "tessera/job/job.h"

namespace tessera::prepare {

/// Audio rows of a clip: `count` of them, `rate` a second, the first `offset` seconds after the clip's first frame. All
/// latent frames have rows but the first, which is the reference image.
struct SoundRows {
  int64_t count = 0;
  double rate = 0, offset = 0;
  double seconds() const { return static_cast<double>(count) / rate; }
};
/// Throws UserError (usage) for a clip of one latent frame, which has no audio rows.
SoundRows sound_rows(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width, double fps,
                     int64_t rows_a_frame);

class Listener {
 public:
  Listener(const recipe::Recipe::Data& data, const job::Job& job);

  /// Extras of a row's audio (its own file, else the clip's track) and pose. Throws UserError (input) naming the file:
  /// it has no track, or the track ends before the clip begins.
  std::map<std::string, at::Tensor> extras(const data::Item& item, const data::ClipSpec& spec) const;
  /// Extras of audio that begins with the first frame of a sample; none if the audio has ended: the model then takes
  /// silence.
  std::map<std::string, at::Tensor> extras(const data::Sound& sound, int64_t frames) const;
  /// Latent of a video of poses. Throws UserError (input) naming the file.
  at::Tensor pose(const data::Path& file, const data::ClipSpec& spec) const;

 private:
  at::Tensor rows_of(const data::Sound& sound, const SoundRows& rows) const;

  const recipe::Recipe::Data& data_;
  const job::Job& job_;
  const net::Conditions wanted_;
  std::unique_ptr<net::AudioEncoder> encoder_;
};

/// The speech model's name for this recipe: data.audio_encoder, or with auto the preset of the model's width. Empty for
/// a model without audio input. Throws UserError (usage) if the two do not fit together.
std::string audio_encoder_of(const recipe::Recipe::Data& data, const net::Conditions& wanted);

/// The row's audio and pose files, by the role that they have in the key of the clip's entry.
std::vector<data::RowFile> sound_files(const data::Item& item, const net::Conditions& wanted);

/// The audio of each prompt: the files of sample.audio, repeated if there are fewer ("clip" or empty: the audio of the
/// prompt's own clip). `seconds`: its length, 0: to the end, nullopt: one clip. Empty for a model without audio input.
/// Throws UserError (usage, input).
std::vector<data::Sound> prompt_sounds(const recipe::Recipe::Data& data, const recipe::Recipe::Sample& sample,
                                       const std::vector<std::string>& prompts,
                                       const std::function<data::Items()>& clips, const net::Conditions& wanted,
                                       std::optional<double> seconds = {});

/// The pose video of each prompt: the files of sample.pose, repeated if there are fewer ("clip": of the prompt's row).
/// Empty without sample.pose. Throws UserError (usage) for a model without pose input and for a row without poses.
std::vector<data::Path> prompt_poses(const recipe::Recipe::Sample& sample, const std::vector<std::string>& prompts,
                                     const std::function<data::Items()>& clips, const net::Conditions& wanted);

}  // namespace tessera::prepare
