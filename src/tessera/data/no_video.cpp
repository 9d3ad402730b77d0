// Clips and sound in a build without FFmpeg (-DTESSERA_VIDEO=OFF), in place of video_*.cpp, audio.cpp and ffmpeg.cpp.
#include "tessera/base/check.h"
#include "tessera/data/audio.h"
#include "tessera/data/clip_format.h"

namespace tessera::data {

namespace {
[[noreturn]] void refuse_video(const Path& path) {
  throw UserError(Exit::input, "data.video", path.string() + ": this program was built without FFmpeg",
                  "install libavformat-dev, libavcodec-dev, libswscale-dev and libswresample-dev and build with "
                  "-DTESSERA_VIDEO=ON, "
                  "or train on samples prepared elsewhere");
}
}  // namespace

bool has_video() { return false; }

VideoInfo probe_file(const Path& path) { refuse_video(path); }
Frames decode_file(const Path& path, const ClipSpec&, VideoInfo*) { refuse_video(path); }
void check_hdr(const std::string& name, const Traits&, const Showing&) { refuse_video(name); }
void write_mp4(const Path& path, const Frames&) { refuse_video(path); }
void write_mp4(const Path& path, const Frames&, const Sound&) { refuse_video(path); }
bool has_sound(const Path& path) { refuse_video(path); }
Sound decode_sound(const Path& path, const SoundSpec&) { refuse_video(path); }
std::vector<uint8_t> write_png(const Frames&, int) { refuse_video("a .png"); }
std::vector<uint8_t> write_jpeg(const Frames&, int) { refuse_video("a .jpg"); }
std::vector<uint8_t> encode_gif(const Frames&) { refuse_video("a .gif"); }

}  // namespace tessera::data
