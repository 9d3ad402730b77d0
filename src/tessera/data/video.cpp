#include "tessera/data/video.h"

#include "tessera/base/check.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/frame_folder.h"

namespace tessera::data {

namespace {

void refuse_latents(const Path& path) {
  check_input(!is_latent(path), "data.decode", path.string() + ": latents have no pictures to show or to begin with",
              "train on the pictures themselves: data.latents = \"no\"");
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

}  // namespace tessera::data
