#pragma once
// Clips with sound for the tiny runs, and the flags of a tiny model that hears them.
//
//   give_sound(run);
//   run.train(2, "run", kHearing);
#include <cmath>
#include <string>
#include <vector>

#include "program.h"
#include "tessera/data/audio.h"
#include "tessera/data/video.h"

namespace tessera::testing {

/// Of the latents of TinyRun, which have 12 channels, and its texts.
inline const std::vector<std::string> kHearing = {
    "--model.config.model_type",          "s2v", "--model.config.cond_dim", "12", "--model.config.audio_dim", "32",
    "--model.config.audio_inject_layers", "0,2"};

inline data::Sound hum(double hertz, double seconds) {
  data::Sound sound{16000, {}};
  for (int i = 0; i < static_cast<int>(16000 * seconds); ++i)
    sound.samples.push_back(static_cast<float>(0.5 * std::sin(6.283185307 * hertz * i / 16000)));
  return sound;
}

/// Gives every clip of the data set a sound track.
inline void give_sound(const TinyRun& run) {
  for (int clip = 0; clip < 3; ++clip) {
    const std::filesystem::path file = run.folder() / "data" / ("clip" + std::to_string(clip) + ".mp4");
    const data::Frames frames = data::decode_clip(file, {});
    data::write_mp4(file, frames, hum(200 * (1 + clip), 1));
  }
}

}  // namespace tessera::testing
