#pragma once
// Sound in and out: any file with a sound track to mono samples at one rate. FFmpeg stays behind this header.
//
//   Sound sound = decode_sound("clips/a.mp4", {.start = 2, .seconds = 5});
//   write_mp4("samples/step-000100-0.mp4", frames, sound);
//
// A program built without FFmpeg (no_video.cpp) has the same functions; each throws a UserError that says so.
#include "tessera/data/video.h"

namespace tessera::data {

struct Sound {
  int rate = 0;                ///< samples a second
  std::vector<float> samples;  ///< one channel, in [-1, 1] as a rule

  double seconds() const { return rate > 0 ? static_cast<double>(samples.size()) / rate : 0; }
};

struct SoundSpec {
  int rate = 16000;    ///< samples a second; what speech models take
  double start = 0;    ///< seconds from the beginning
  double seconds = 0;  ///< 0: to the end
};

bool has_sound(const Path& path);  ///< whether the file has a sound track; throws UserError (input) when unreadable

/// Channels are mixed to one, the rate is changed; fewer samples than asked for where the sound ends earlier. Throws
/// UserError (input) naming the file: missing, no sound, damaged.
Sound decode_sound(const Path& path, const SoundSpec& spec = {});

/// write_mp4 with a sound track (AAC) that begins with the first frame and ends with the last. Without samples it is
/// the file of write_mp4 without sound.
void write_mp4(const Path& path, const Frames& frames, const Sound& sound);

}  // namespace tessera::data
