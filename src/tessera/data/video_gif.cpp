// Moving pictures as .gif: our palette, FFmpeg's encoder and writer.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/data/clip_format.h"
#include "tessera/data/ffmpeg_write.h"
#include "tessera/data/palette.h"

namespace tessera::data {

std::vector<uint8_t> encode_gif(const Frames& frames) {
  check_internal(frames.count > 0 && frames.width > 0 && frames.height > 0 && frames.fps > 0, "data.encode",
                 "a .gif needs frames and a rate");
  quiet_ffmpeg();
  const AVCodec* encoder = avcodec_find_encoder(AV_CODEC_ID_GIF);
  const CodecPtr codec = new_encoder(encoder, "GIF", frames.width, frames.height, AV_PIX_FMT_PAL8);
  codec->time_base = {1, 100};
  require(avcodec_open2(codec.get(), encoder, nullptr), "opening the GIF encoder");
  const int64_t last_delay = std::lround(100 / frames.fps);
  Muxer muxer("gif", *codec, {{"loop", 0}, {"final_delay", last_delay}});

  const Palette palette = choose_palette(frames);
  for (int i = 0; i < frames.count; ++i) {
    const FramePtr picture = new_frame(AV_PIX_FMT_PAL8, frames.width, frames.height);
    const std::vector<uint8_t> indices = palette.map(frames, i);
    for (int y = 0; y < frames.height; ++y)
      std::memcpy(picture->data[0] + y * static_cast<ptrdiff_t>(picture->linesize[0]),
                  indices.data() + static_cast<size_t>(y) * frames.width, static_cast<size_t>(frames.width));
    auto* colours = reinterpret_cast<uint32_t*>(picture->data[1]);  // native-endian ARGB
    std::fill(colours, colours + 256, 0xff000000u);
    for (size_t c = 0; c < palette.colours().size(); ++c) {
      const auto [r, g, b] = palette.colours()[c];
      colours[c] = 0xff000000u | static_cast<uint32_t>(r) << 16 | static_cast<uint32_t>(g) << 8 | b;
    }
    picture->pts = std::lround(100 * i / frames.fps);
    require(avcodec_send_frame(codec.get(), picture.get()), "encoding");
    drain(*codec, [&](AVPacket& packet) { muxer.add(packet); });
  }
  require(avcodec_send_frame(codec.get(), nullptr), "encoding");
  drain(*codec, [&](AVPacket& packet) { muxer.add(packet); });
  const std::string file = muxer.finish();
  return {file.begin(), file.end()};
}

}  // namespace tessera::data
