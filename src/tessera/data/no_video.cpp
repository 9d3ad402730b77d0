// Clips and sound in a build without FFmpeg (-DTESSERA_VIDEO=OFF); video.cpp, video_file.cpp, video_write.cpp,
// video_gif.cpp and audio.cpp are the other ones.
#include "tessera/base/check.h"
#include "tessera/data/audio.h"
#include "tessera/data/clip_format.h"

namespace tessera::data {

namespace {
[[noreturn]] void refuse(const Path& path) {
  throw UserError(Exit::input, "data.video", path.string() + ": this program was built without FFmpeg",
                  "install libavformat-dev, libavcodec-dev, libswscale-dev and libswresample-dev and build with "
                  "-DTESSERA_VIDEO=ON, "
                  "or train on samples prepared elsewhere");
}
}  // namespace

bool has_video() { return false; }

VideoInfo probe(const Path& path) { refuse(path); }
VideoInfo probe_file(const Path& path) { refuse(path); }
Frames decode_clip(const Path& path, const ClipSpec&) { refuse(path); }
Frames decode_file(const Path& path, const ClipSpec&) { refuse(path); }
void write_mp4(const Path& path, const Frames&) { refuse(path); }
void write_mp4(const Path& path, const Frames&, const Sound&) { refuse(path); }
bool has_sound(const Path& path) { refuse(path); }
Sound decode_sound(const Path& path, const SoundSpec&) { refuse(path); }
std::vector<uint8_t> write_png(const Frames&, int) { refuse("a .png"); }
std::vector<uint8_t> write_jpeg(const Frames&, int) { refuse("a .jpg"); }
std::vector<uint8_t> encode_gif(const Frames&) { refuse("a .gif"); }

}  // namespace tessera::data
