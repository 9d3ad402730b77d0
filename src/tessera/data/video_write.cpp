#include <cstring>
#include <string>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/ffmpeg.h"
#include "tessera/data/video.h"

namespace tessera::data {

namespace {

void require(int status, const char* act) {
  if (status < 0) throw InternalError("data.encode", std::string(act) + ": " + ffmpeg_error(status));
}

/// Frame `index`, cut to width x height, in the pixel format of an encoder.
FramePtr picture(const Frames& frames, int index, const AVCodecContext& codec) {
  FramePtr rgb = new_frame(AV_PIX_FMT_RGB24, codec.width, codec.height);
  for (int y = 0; y < codec.height; ++y)
    std::memcpy(rgb->data[0] + y * static_cast<ptrdiff_t>(rgb->linesize[0]),
                frames.frame(index) + static_cast<size_t>(y) * frames.width * 3, static_cast<size_t>(codec.width) * 3);
  if (codec.pix_fmt == AV_PIX_FMT_RGB24) return rgb;
  FramePtr converted = new_frame(codec.pix_fmt, codec.width, codec.height);
  const ScalerPtr scaler(sws_getContext(codec.width, codec.height, AV_PIX_FMT_RGB24, codec.width, codec.height,
                                        codec.pix_fmt, SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, nullptr,
                                        nullptr, nullptr));
  check_internal(scaler != nullptr, "data.encode", "no conversion from RGB");
  sws_setColorspaceDetails(scaler.get(), sws_getCoefficients(SWS_CS_DEFAULT), 1, sws_getCoefficients(codec.colorspace),
                           codec.color_range == AVCOL_RANGE_JPEG, 0, 1 << 16, 1 << 16);
  sws_scale(scaler.get(), rgb->data, rgb->linesize, 0, codec.height, converted->data, converted->linesize);
  return converted;
}

CodecPtr new_encoder(const AVCodec* encoder, const char* name, int width, int height, AVPixelFormat format) {
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

void constant_quality(AVCodecContext& codec, int quantiser) {
  codec.flags |= AV_CODEC_FLAG_QSCALE;
  codec.global_quality = FF_QP2LAMBDA * quantiser;
}

CodecPtr open_video_encoder(int width, int height, double fps) {
  const AVCodec* encoder = avcodec_find_encoder_by_name("libx264");
  const bool x264 = encoder != nullptr;
  if (!x264) encoder = avcodec_find_encoder(AV_CODEC_ID_MPEG4);
  CodecPtr codec = new_encoder(encoder, "H.264 or MPEG-4", width, height, AV_PIX_FMT_YUV420P);
  codec->framerate = av_d2q(fps, 65535);
  codec->time_base = av_inv_q(codec->framerate);
  codec->colorspace = AVCOL_SPC_BT709;
  codec->color_primaries = AVCOL_PRI_BT709;
  codec->color_trc = AVCOL_TRC_BT709;
  codec->color_range = AVCOL_RANGE_MPEG;
  codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (x264) {
    av_opt_set(codec->priv_data, "preset", "medium", 0);
    av_opt_set(codec->priv_data, "crf", "12", 0);
  } else {
    constant_quality(*codec, 2);
  }
  require(avcodec_open2(codec.get(), encoder, nullptr), "opening the video encoder");
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

/// An mp4 made in memory, so that DurableFile can put it in place whole.
class Muxer {
 public:
  Muxer(const AVCodecContext& codec, int frames) : codec_(codec) {
    require(avformat_alloc_output_context2(&format_, nullptr, "mp4", nullptr), "opening the mp4 writer");
    stream_ = avformat_new_stream(format_, nullptr);
    require(avcodec_parameters_from_context(stream_->codecpar, &codec), "describing the stream");
    stream_->time_base = codec.time_base;
    stream_->avg_frame_rate = codec.framerate;
    require(avio_open_dyn_buf(&format_->pb), "opening a buffer");
    // Room for the index in front of the frames, where players look first: at most 32 bytes a frame.
    AVDictionary* options = nullptr;
    av_dict_set_int(&options, "moov_size", 8192 + 64 * static_cast<int64_t>(frames), 0);
    const int status = avformat_write_header(format_, &options);
    av_dict_free(&options);
    require(status, "writing the mp4 header");
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
    require(av_write_trailer(format_), "writing the mp4 index");
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

std::vector<uint8_t> write_image(const Frames& frames, int index, CodecPtr codec) {
  check_internal(index >= 0 && index < frames.count, "data.encode", "no frame " + std::to_string(index));
  quiet_ffmpeg();
  codec->time_base = {1, 25};
  require(avcodec_open2(codec.get(), codec->codec, nullptr), "opening the image encoder");
  const FramePtr frame = picture(frames, index, *codec);
  frame->quality = codec->global_quality;
  require(avcodec_send_frame(codec.get(), frame.get()), "encoding");
  require(avcodec_send_frame(codec.get(), nullptr), "encoding");
  std::vector<uint8_t> bytes;
  drain(*codec, [&](AVPacket& packet) { bytes.insert(bytes.end(), packet.data, packet.data + packet.size); });
  return bytes;
}

}  // namespace

void write_mp4(const Path& path, const Frames& frames) {
  const int width = frames.width & ~1, height = frames.height & ~1;
  check_internal(frames.count > 0 && width > 0 && height > 0 && frames.fps > 0, "data.encode",
                 path.string() + ": a clip needs frames of at least 2x2 pixels and a rate");
  quiet_ffmpeg();
  const CodecPtr codec = open_video_encoder(width, height, frames.fps);
  Muxer muxer(*codec, frames.count);
  const auto add = [&](AVPacket& packet) { muxer.add(packet); };
  for (int i = 0; i < frames.count; ++i) {
    const FramePtr frame = picture(frames, i, *codec);
    frame->pts = i;
    frame->quality = codec->global_quality;
    require(avcodec_send_frame(codec.get(), frame.get()), "encoding");
    drain(*codec, add);
  }
  require(avcodec_send_frame(codec.get(), nullptr), "encoding");
  drain(*codec, add);
  checkpoint::write_text(path, muxer.finish());
}

std::vector<uint8_t> write_png(const Frames& frames, int index) {
  return write_image(
      frames, index,
      new_encoder(avcodec_find_encoder(AV_CODEC_ID_PNG), "PNG", frames.width, frames.height, AV_PIX_FMT_RGB24));
}

std::vector<uint8_t> write_jpeg(const Frames& frames, int index) {
  CodecPtr codec =
      new_encoder(avcodec_find_encoder(AV_CODEC_ID_MJPEG), "JPEG", frames.width, frames.height, AV_PIX_FMT_YUVJ444P);
  codec->color_range = AVCOL_RANGE_JPEG;
  codec->colorspace = AVCOL_SPC_BT470BG;  // the matrix of JFIF
  constant_quality(*codec, 2);
  return write_image(frames, index, std::move(codec));
}

}  // namespace tessera::data
