#pragma once
// What video_write.cpp and video_gif.cpp share: opening encoders, taking their packets, and files made in memory.
// Included by nobody else.
#include <utility>
#include <vector>

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
  codec->thread_count = 1;  // ranks encode side by side
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
  using Options = std::vector<std::pair<const char*, int64_t>>;
  /// `format` and `options` as FFmpeg names them; `sound`: a second stream, or null.
  Muxer(const char* format, const AVCodecContext& codec, const Options& options, const AVCodecContext* sound = nullptr)
      : codec_(codec), sound_(sound) {
    require(avformat_alloc_output_context2(&format_, nullptr, format, nullptr), "opening the file writer");
    for (const AVCodecContext* stream_codec : {&codec, sound}) {
      if (!stream_codec) continue;
      AVStream* stream = avformat_new_stream(format_, nullptr);
      require(avcodec_parameters_from_context(stream->codecpar, stream_codec), "describing the stream");
      for (int i = 0; i < stream_codec->nb_coded_side_data; ++i) {
        const AVPacketSideData& side = stream_codec->coded_side_data[i];
        if (uint8_t* copy = av_stream_new_side_data(stream, side.type, side.size))
          std::copy_n(side.data, side.size, copy);
      }
      stream->time_base = stream_codec->time_base;
      stream->avg_frame_rate = stream_codec->framerate;
    }
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
    write(packet, codec_, 0);
  }
  void add_sound(AVPacket& packet) { write(packet, *sound_, 1); }

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

  void write(AVPacket& packet, const AVCodecContext& codec, int stream) {
    packet.stream_index = stream;
    av_packet_rescale_ts(&packet, codec.time_base, format_->streams[stream]->time_base);
    // Two streams come one after the other and are put in order of time here.
    require(sound_ ? av_interleaved_write_frame(format_, &packet) : av_write_frame(format_, &packet),
            "writing a frame");
  }

  const AVCodecContext& codec_;
  const AVCodecContext* sound_;
  AVFormatContext* format_ = nullptr;
};

}  // namespace tessera::data
