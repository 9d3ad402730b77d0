#pragma once
// A file of video or a picture, decoded to one size and rate by FFmpeg. Users go by video.h, for which a folder of
// frames is a clip as well.
//
//   Frames clip = decode_file("clips/a.mp4", {.frames = 16, .height = 64, .width = 96, .fps = 16});
//
// A program built without FFmpeg (no_video.cpp) has the same functions; each throws a UserError that says so.
#include <cstdint>
#include <filesystem>
#include <vector>

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

/// What a file's header says, as it is shown (turned and with square pixels); nothing is decoded.
struct VideoInfo {
  int width = 0, height = 0;
  double fps = 0;
  int64_t frames = 0;   ///< from the index, else duration x fps; 1 for an image
  double duration = 0;  ///< seconds
};
VideoInfo probe_file(const Path& path);

struct ClipSpec {
  int frames = 0;             ///< 0: all there are
  int height = 0, width = 0;  ///< 0: as the source
  double fps = 0;             ///< 0: as the source, every frame from `start` on
  double start = 0;           ///< seconds from the first frame
};

/// Frame k is the source frame nearest to start + k / fps (the earlier one of two equally near); a source of n frames
/// lasts n / its fps. Each is resized (bicubic) to cover height x width and cropped in its centre. An image is a clip
/// of one frame. Throws UserError (input) naming the file: missing, no video stream, damaged, fewer frames than asked.
Frames decode_file(const Path& path, const ClipSpec& spec);

}  // namespace tessera::data
