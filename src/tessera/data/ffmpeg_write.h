#pragma once
// What video_write.cpp and video_gif.cpp share: opening encoders, taking their packets, and files made in memory.
// Included by nobody else.
#include <initializer_list>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/data/ffmpeg.h"

namespace tessera::data {

inline void require(int status, const char* act) {
  if (status < 0) throw InternalError("data.encode", std::string(act) + ": " + ffmpeg_error(status));
}

inline CodecPtr new_encoder(const AVCodec* encoder, const char* name, int width, int height, AVPixelFormat format) {
  if (!encoder)
    throw UserError(Exit::usage, "data.encode", std::string("FFmpeg here has no ") + name + " encoder",
                    "install a full libavcodec");
  CodecPtr codec(avcodec_alloc_context3(encoder));
  codec->width = width;
  codec->height = height;
  codec->pix_fmt = format;
  codec->thread_count = 1;  // the same bytes from the same frames
  return codec;
}

/// Everything the encoder has ready; `take` gets each packet.
template <class Take>
void drain(AVCodecContext& codec, Take&& take) {
  const PacketPtr packet(av_packet_alloc());
  for (;;) {
    const int status = avcodec_receive_packet(&codec, packet.get());
    if (status == AVERROR(EAGAIN) || status == AVERROR_EOF) return;
    require(status, "encoding");
    take(*packet);
    av_packet_unref(packet.get());
  }
}

/// A clip's file made in memory, so that DurableFile can put it in place whole.
class Muxer {
 public:
  using Options = std::initializer_list<std::pair<const char*, int64_t>>;
  /// `format` and `options` as FFmpeg names them.
  Muxer(const char* format, const AVCodecContext& codec, Options options) : codec_(codec) {
    require(avformat_alloc_output_context2(&format_, nullptr, format, nullptr), "opening the file writer");
    stream_ = avformat_new_stream(format_, nullptr);
    require(avcodec_parameters_from_context(stream_->codecpar, &codec), "describing the stream");
    stream_->time_base = codec.time_base;
    stream_->avg_frame_rate = codec.framerate;
    require(avio_open_dyn_buf(&format_->pb), "opening a buffer");
    AVDictionary* set = nullptr;
    for (const auto& [name, value] : options) av_dict_set_int(&set, name, value, 0);
    const int status = avformat_write_header(format_, &set);
    av_dict_free(&set);
    require(status, "writing the header");
  }
  ~Muxer() {
    close();
    avformat_free_context(format_);
  }
  Muxer(const Muxer&) = delete;
  Muxer& operator=(const Muxer&) = delete;

  void add(AVPacket& packet) {
    packet.duration = 1;
    av_packet_rescale_ts(&packet, codec_.time_base, stream_->time_base);
    require(av_write_frame(format_, &packet), "writing a frame");
  }

  std::string finish() {
    require(av_write_trailer(format_), "writing the end of the file");
    return close();
  }

 private:
  std::string close() {
    if (!format_ || !format_->pb) return {};
    uint8_t* bytes = nullptr;
    const int size = avio_close_dyn_buf(format_->pb, &bytes);
    format_->pb = nullptr;
    std::string file(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    av_free(bytes);
    return file;
  }

  const AVCodecContext& codec_;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
};

}  // namespace tessera::data
