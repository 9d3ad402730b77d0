#pragma once
// Pictures and videos of any kind that FFmpeg writes, for tests of how they are read. Left out of a build without FFmpeg.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "data/scene.h"
#include "tessera/data/ffmpeg_write.h"

extern "C" {
#include <libavcodec/bsf.h>
}

namespace tessera::data {

using Rgba = std::array<int, 4>;
using Paint = std::function<Rgba(int x, int y)>;

inline constexpr int kWidth = 64, kHeight = 32;  // of videos here

/// Red, green / blue, white.
inline Rgba quarters(int x, int y, int width, int height) {
  constexpr Rgba kColours[] = {{255, 0, 0, 255}, {0, 255, 0, 255}, {0, 0, 255, 255}, {255, 255, 255, 255}};
  return kColours[(y * 2 >= height) * 2 + (x * 2 >= width)];
}

/// A frame of a format of RGB or grey whose samples are `scale`d exactly to its depth, of YUV by FFmpeg's scaler.
inline FramePtr painted(AVPixelFormat format, int width, int height, const Paint& paint) {
  const AVPixFmtDescriptor& form = *av_pix_fmt_desc_get(format);
  const bool grey = form.nb_components <= 2, rgb = form.flags & AV_PIX_FMT_FLAG_RGB;
  FramePtr frame = new_frame(grey || rgb ? format : AV_PIX_FMT_RGBA, width, height);
  for (const AVBufferRef* buffer : frame->buf)
    if (buffer) std::fill_n(buffer->data, buffer->size, uint8_t{0});  // samples are put into what is there
  std::vector<uint16_t> samples(static_cast<size_t>(width));
  for (int y = 0; y < height; ++y)
    for (int c = 0; c < (grey || rgb ? form.nb_components : 4); ++c) {
      const AVPixFmtDescriptor& written = *av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame->format));
      const int most = (1 << written.comp[c].depth) - 1;
      for (int x = 0; x < width; ++x) {
        const int level = paint(x, y)[static_cast<size_t>(grey && c == 1 ? 3 : c)];
        samples[static_cast<size_t>(x)] = static_cast<uint16_t>((level * most + 127) / 255);
      }
      av_write_image_line2(samples.data(), frame->data, frame->linesize, &written, 0, y, c, width, sizeof samples[0]);
    }
  if (grey || rgb) return frame;
  FramePtr yuv = new_frame(format, width, height);
  ScalerPtr scaler;
  scale_frame(*frame, *yuv, scaler);
  return yuv;
}

/// The file of one picture, by the encoder of this name.
inline std::string picture_file(const char* encoder, const AVFrame& frame) {
  const AVCodec* codec = avcodec_find_encoder_by_name(encoder);
  const CodecPtr opened =
      new_encoder(codec, encoder, frame.width, frame.height, static_cast<AVPixelFormat>(frame.format));
  opened->time_base = {1, 25};
  av_opt_set(opened->priv_data, "lossless", "1", 0);
  require(avcodec_open2(opened.get(), codec, nullptr), "opening the encoder");
  require(avcodec_send_frame(opened.get(), &frame), "encoding");
  avcodec_send_frame(opened.get(), nullptr);
  std::string bytes;
  drain(*opened, [&](AVPacket& packet) { bytes.append(reinterpret_cast<char*>(packet.data), packet.size); });
  return bytes;
}

struct VideoForm {
  const char *muxer, *encoder;
  int rate = 16;
  std::function<void(AVCodecContext&)> set = {};  ///< before the encoder is opened
  int64_t first = 0;                              ///< stamp of the first frame
  const char* filter = nullptr;                   ///< bitstream filter and its options: "name=a=b"
  Muxer::Options options = {};
};

/// The file of a video.
inline std::string video_file(const VideoForm& form, const std::vector<FramePtr>& frames) {
  quiet_ffmpeg();
  const AVCodec* encoder = avcodec_find_encoder_by_name(form.encoder);
  const AVFrame& one = *frames.front();
  const CodecPtr codec =
      new_encoder(encoder, form.encoder, one.width, one.height, static_cast<AVPixelFormat>(one.format));
  codec->time_base = {1, form.rate}, codec->framerate = {form.rate, 1};
  const AVOutputFormat* muxed = av_guess_format(form.muxer, nullptr, nullptr);
  if (muxed && (muxed->flags & AVFMT_GLOBALHEADER)) codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (form.set) form.set(*codec);
  require(avcodec_open2(codec.get(), encoder, nullptr), "opening the encoder");
  Muxer muxer(form.muxer, *codec, form.options);
  AVBSFContext* filter = nullptr;
  if (form.filter) {
    require(av_bsf_list_parse_str(form.filter, &filter), "a filter");
    require(avcodec_parameters_from_context(filter->par_in, codec.get()), "a filter");
    filter->time_base_in = codec->time_base;
    require(av_bsf_init(filter), "a filter");
  }
  const auto add = [&](AVPacket& packet) {
    if (!filter) return muxer.add(packet);
    require(av_bsf_send_packet(filter, &packet), "filtering");
    const PacketPtr filtered(av_packet_alloc());
    while (av_bsf_receive_packet(filter, filtered.get()) >= 0) muxer.add(*filtered);
  };
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i]->pts = form.first + static_cast<int64_t>(i);
    require(avcodec_send_frame(codec.get(), frames[i].get()), "encoding");
    drain(*codec, add);
  }
  avcodec_send_frame(codec.get(), nullptr);
  drain(*codec, add);
  av_bsf_free(&filter);
  return muxer.finish();
}

inline Rgba pixel(const Frames& frames, int frame, int y, int x) {
  const uint8_t* at = frames.frame(frame) + (static_cast<size_t>(y) * frames.width + x) * 3;
  return {at[0], at[1], at[2], 255};
}

/// Which of the colours of quarters() is in each quarter of the first frame, by row: "RGBW" of what is not turned.
inline std::string colours_of(const Frames& frames) {
  std::string letters;
  for (const int y : {frames.height / 4, frames.height * 3 / 4})
    for (const int x : {frames.width / 4, frames.width * 3 / 4}) {
      const Rgba at = pixel(frames, 0, y, x);
      const bool r = at[0] > 128, g = at[1] > 128, b = at[2] > 128;
      letters += r && g && b ? 'W' : r && !g && !b ? 'R' : g && !r && !b ? 'G' : b && !r && !g ? 'B' : '?';
    }
  return letters;
}

}  // namespace tessera::data
