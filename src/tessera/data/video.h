#pragma once
// Clips in and out: decode to one size and rate, encode mp4, png and jpeg. FFmpeg stays behind this header.
//
//   Frames clip = decode_clip("clips/a.mp4", {.frames = 16, .height = 64, .width = 96, .fps = 16});
//   write_mp4("samples/step-000100-0.mp4", clip);
//   double db = psnr(clip, reconstruction);           // above 30: hard to tell apart
//
// A program built without FFmpeg (no_video.cpp) has the same functions; each throws a UserError that says so.
#include <cstdint>
#include <vector>

#include "tessera/data/video_file.h"

namespace tessera::data {

/// Of a file, or of a folder of numbered frames. Reads all of a file that has no index of its frames.
VideoInfo probe(const Path& path);

/// As decode_file says; of a folder of numbered frames as decode_frames does (frame_folder.h).
Frames decode_clip(const Path& path, const ClipSpec& spec);

/// H.264 at near lossless quality, yuv420p, BT.709 (MPEG-4 part 2 where FFmpeg lacks x264). An odd last row or column
/// is left out, because 4:2:0 has none. The file appears whole or not at all.
void write_mp4(const Path& path, const Frames& frames);

/// One frame as the bytes of a file, to store or to embed in a page.
std::vector<uint8_t> write_png(const Frames& frames, int index);
std::vector<uint8_t> write_jpeg(const Frames& frames, int index);

/// Peak signal to noise ratio in dB over all pixels of all frames; infinite when equal. Throws UserError (input) when
/// the shapes differ, naming both.
double psnr(const Frames& a, const Frames& b);

}  // namespace tessera::data
