#include "tessera/data/video.h"

#include "tessera/data/frame_folder.h"

namespace tessera::data {

VideoInfo probe(const Path& path) {
  return std::filesystem::is_directory(path) ? probe_frames(path) : probe_file(path);
}

Frames decode_clip(const Path& path, const ClipSpec& spec) {
  return std::filesystem::is_directory(path) ? decode_frames(path, spec) : decode_file(path, spec);
}

}  // namespace tessera::data
