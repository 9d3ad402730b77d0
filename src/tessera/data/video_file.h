#pragma once
// A file of video or a picture, decoded to one size and rate by FFmpeg. Users go by video.h, for which a folder of
// frames is a clip as well.
//
//   Frames clip = decode_file("clips/a.mp4", {.frames = 16, .height = 64, .width = 96, .fps = 16});
//
// A program built without FFmpeg (no_video.cpp) has the same functions; each throws a UserError that says so.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/data/reading.h"

namespace tessera::data {

using Path = std::filesystem::path;

bool has_video();  ///< false in a build without FFmpeg

struct Frames {
  int count = 0, height = 0, width = 0;
  double fps = 0;
  std::vector<uint8_t> rgb;  ///< [F, H, W, 3]

  size_t frame_bytes() const { return static_cast<size_t>(height) * width * 3; }
  const uint8_t* frame(int index) const { return rgb.data() + index * frame_bytes(); }
  uint8_t* frame(int index) { return rgb.data() + index * frame_bytes(); }
};

/// What is known of a file after a look into it, as it is shown (turned; videos with square pixels).
struct VideoInfo {
  int width = 0, height = 0;
  double fps = 0;
  int64_t frames = 0;    ///< those that decoding gives: 1 of a picture
  double duration = 0;   ///< seconds, from the first frame to the end of the last one
  bool picture = false;  ///< a still picture; a video of one frame is none
  bool counted = false;  ///< all of the file was read to count its frames, since it has no index that lists them
  Traits traits = {};
};
/// Frames are counted, but decoded no further than to see how they are shown. Throws UserError (input) as decode_file
/// does, also for a JPEG that is cut short.
VideoInfo probe_file(const Path& path);

/// The rate of folders of frames, which have none, for starts in seconds.
inline constexpr double kFolderFps = 24;

/// Frames a second of what decode_clip gives of a source at `fps` (0: as it is).
inline double rate_of(const VideoInfo& info, double fps) {
  return fps > 0 ? fps : info.fps > 0 ? info.fps : kFolderFps;
}
/// Frames that decode_clip finds in it: it shows each until the next one's time, the last until a millionth of a frame
/// before its end. A folder of frames has no rate.
inline int64_t frames_at(const VideoInfo& info, double fps) {
  if (fps <= 0 || info.fps <= 0 || info.frames <= 1) return info.frames;
  const double lasts = info.duration > 0 ? info.duration * info.fps : static_cast<double>(info.frames);
  return static_cast<int64_t>(fps * (lasts - 1e-6) / info.fps) + 1;
}

struct ClipSpec {
  int frames = 0;             ///< 0: all there are
  int height = 0, width = 0;  ///< 0: as the source
  double fps = 0;             ///< 0: as the source, every frame from `start` on
  double start = 0;           ///< seconds from the first frame
  Showing showing = {};
  Edges bars = {};  ///< cut off first
};

/// Frame k is the source frame nearest to start + k / fps (the earlier one of two equally near); a source of n frames
/// lasts n / its fps. Each is resized (bicubic) to cover height x width and cropped in its centre. An image is a clip
/// of one frame. Throws UserError (input) naming the file: missing, no video stream, damaged, fewer frames than asked,
/// HDR or colours that are not read. `found` gets what probe_file would say but for the number of frames.
Frames decode_file(const Path& path, const ClipSpec& spec, VideoInfo* found = nullptr);
/// Throws UserError (input) for HDR where it is refused.
void check_hdr(const std::string& name, const Traits& traits, const Showing& showing);

}  // namespace tessera::data
