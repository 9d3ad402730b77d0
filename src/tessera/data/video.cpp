#include "tessera/data/video.h"

#include <cmath>
#include <limits>
#include <string>

#include "tessera/base/check.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/frame_folder.h"

namespace tessera::data {

namespace {

void refuse_latents(const Path& path) {
  check_input(!is_latent(path), "data.decode", path.string() + ": latents have no pictures to show or to begin with",
              "train on the pictures themselves: data.latents = \"no\"");
}

std::string shape_of(const Frames& frames) {
  return std::to_string(frames.count) + "x" + std::to_string(frames.height) + "x" + std::to_string(frames.width);
}

}  // namespace

VideoInfo probe(const Path& path) {
  refuse_latents(path);
  return std::filesystem::is_directory(path) ? probe_frames(path) : probe_file(path);
}

Frames decode_clip(const Path& path, const ClipSpec& spec) {
  refuse_latents(path);
  return std::filesystem::is_directory(path) ? decode_frames(path, spec) : decode_file(path, spec);
}

double psnr(const Frames& a, const Frames& b) {
  check_input(shape_of(a) == shape_of(b) && !a.rgb.empty(), "data.psnr",
              "frames of " + shape_of(a) + " against " + shape_of(b),
              "compare clips of the same frames, height and width");
  int64_t sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) {
    const int difference = a.rgb[i] - b.rgb[i];
    sum += difference * difference;
  }
  if (sum == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(255.0 * 255.0 * static_cast<double>(a.rgb.size()) / static_cast<double>(sum));
}

}  // namespace tessera::data
