#include "tessera/data/clip_format.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"

namespace tessera::data {

namespace fs = std::filesystem;

ClipFormat parse_clip_format(std::string_view name) {
  for (size_t i = 0; i < kClipFormats.size(); ++i)
    if (kClipFormats[i] == name) return static_cast<ClipFormat>(i);
  const std::vector<std::string> known(kClipFormats.begin(), kClipFormats.end());
  throw UserError(Exit::usage, "sample", "unknown clip format '" + std::string(name) + "'",
                  "did you mean '" + nearest(name, known).front() + "'? There are mp4, gif, png and frames");
}

std::optional<ClipFormat> clip_format_of(const Path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".mp4") return ClipFormat::mp4;
  if (ending == ".gif") return ClipFormat::gif;
  if (ending == ".png") return ClipFormat::png;
  return std::nullopt;
}

std::string extension(ClipFormat format) {
  return format == ClipFormat::frames ? "" : "." + std::string(kClipFormats[static_cast<size_t>(format)]);
}

namespace {

std::string_view text(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string frame_name(int index) {
  char name[32];
  std::snprintf(name, sizeof name, "frame-%04d.png", index);
  return name;
}

void write_frames(const Path& folder, const Frames& frames) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw UserError(Exit::disk, "data.encode", folder.string() + ": the folder cannot be made: " + error.message(),
                    "choose another place with --out");
  for (int i = 0; i < frames.count; ++i) checkpoint::write_text(folder / frame_name(i), text(write_png(frames, i)));
  // A shorter clip than the one before must not end in frames of that one.
  for (int i = frames.count; fs::remove(folder / frame_name(i), error); ++i) continue;
}

}  // namespace

void write_clip(const Path& path, const Frames& frames, ClipFormat format) {
  switch (format) {
    case ClipFormat::mp4:
      return write_mp4(path, frames);
    case ClipFormat::gif:
      return checkpoint::write_text(path, text(encode_gif(frames)));
    case ClipFormat::frames:
      return write_frames(path, frames);
    case ClipFormat::png:
      if (frames.count != 1)
        throw UserError(Exit::usage, "data.encode",
                        path.string() + ": a .png holds one frame, the clip has " + std::to_string(frames.count),
                        "name an .mp4 or a .gif, or a folder with --format frames");
      return checkpoint::write_text(path, text(write_png(frames, 0)));
  }
}

Frames enlarged(const Frames& frames, int times) {
  Frames large{.count = frames.count,
               .height = frames.height * times,
               .width = frames.width * times,
               .fps = frames.fps,
               .rgb = {}};
  large.rgb.resize(large.frame_bytes() * static_cast<size_t>(large.count));
  const size_t line = static_cast<size_t>(large.width) * 3;
  for (int f = 0; f < frames.count; ++f)
    for (int y = 0; y < frames.height; ++y) {
      uint8_t* const first = large.frame(f) + static_cast<size_t>(y) * times * line;
      const uint8_t* from = frames.frame(f) + static_cast<size_t>(y) * frames.width * 3;
      for (int x = 0; x < frames.width; ++x)
        for (int i = 0; i < times; ++i) std::copy_n(from + 3 * x, 3, first + (static_cast<size_t>(x) * times + i) * 3);
      for (int i = 1; i < times; ++i) std::copy_n(first, line, first + i * line);
    }
  return large;
}

Frames thumbnail(const Frames& frames, int side, int count) {
  const int square = static_cast<int>(div_up(std::max({frames.height, frames.width, 1}), side));
  Frames small;
  small.count = std::min(frames.count, count);
  small.height = std::max(1, frames.height / square);
  small.width = std::max(1, frames.width / square);
  small.fps = frames.count == 0 ? frames.fps : frames.fps * small.count / frames.count;
  small.rgb.resize(small.frame_bytes() * static_cast<size_t>(small.count));
  const int rows = std::min(square, frames.height), columns = std::min(square, frames.width);
  for (int f = 0; f < small.count; ++f) {
    const int picked = small.count == 1 ? 0 : f * (frames.count - 1) / (small.count - 1);
    const uint8_t* from = frames.frame(picked);
    uint8_t* to = small.frame(f);
    for (int y = 0; y < small.height; ++y)
      for (int x = 0; x < small.width; ++x)
        for (int c = 0; c < 3; ++c) {
          int sum = 0;
          for (int dy = 0; dy < rows; ++dy)
            for (int dx = 0; dx < columns; ++dx)
              sum += from[((static_cast<size_t>(y) * square + dy) * frames.width + x * square + dx) * 3 + c];
          *to++ = static_cast<uint8_t>((sum + rows * columns / 2) / (rows * columns));
        }
  }
  return small;
}

}  // namespace tessera::data
