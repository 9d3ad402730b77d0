#pragma once
// The forms a sampled clip is handed over in: .mp4, .gif, a folder of numbered pictures, or a picture of its only frame.
//
//   write_clip("cat.gif", clip, ClipFormat::gif);
//   write_clip("cat", clip, ClipFormat::frames);        // cat/frame-0000.png, cat/frame-0001.png, ...
//   write_clip("cat.png", picture, ClipFormat::png);
//
// A program built without FFmpeg (no_video.cpp) has the same functions; those that encode throw a UserError saying so.
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/data/video.h"

namespace tessera::data {

enum class ClipFormat { mp4, gif, frames, png };

inline constexpr std::array<std::string_view, 4> kClipFormats = {"mp4", "gif", "frames",
                                                                 "png"};  ///< names, by ClipFormat
/// Throws UserError (usage) naming the nearest known one.
ClipFormat parse_clip_format(std::string_view name);
/// By the ending of a file's name: .mp4, .gif, .png; nothing for any other.
std::optional<ClipFormat> clip_format_of(const Path& path);
/// ".mp4", ".gif", ".png"; empty for a folder of frames.
std::string extension(ClipFormat format);

/// `path` is the file, or the folder of frames (made when missing; pictures of a longer clip in it are removed).
/// Each file appears whole or not at all. Throws UserError (disk), and (usage) where a .png is to hold more than one frame.
void write_clip(const Path& path, const Frames& frames, ClipFormat format);

/// The whole .gif: one palette of 256 colours for all frames, ordered dither, played in an endless loop. The format
/// counts in hundredths of a second, so a frame's time is rounded to them without adding up.
std::vector<uint8_t> encode_gif(const Frames& frames);

/// Every pixel as a square of `times` x `times`: samples of small models, to be looked at.
Frames enlarged(const Frames& frames, int times);

/// At most `side` pixels along the longer side (by averaging whole squares of pixels) and `count` frames (evenly
/// picked, with the rate lowered to match); for pictures in reports.
Frames thumbnail(const Frames& frames, int side, int count);

}  // namespace tessera::data
