#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/audio.h"
#include "tessera/data/ffmpeg_write.h"

namespace tessera::data {

namespace {

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
    // In small frames it reads memory that x264 has not written: the same frames then gave other bytes each time.
    av_opt_set(codec->priv_data, "mbtree", "0", 0);
  } else {
    constant_quality(*codec, 2);
  }
  require(avcodec_open2(codec.get(), encoder, nullptr), "opening the video encoder");
  return codec;
}

CodecPtr open_sound_encoder(int rate) {
  const AVCodec* encoder = avcodec_find_encoder(AV_CODEC_ID_AAC);
  CodecPtr codec = new_encoder(encoder, "AAC", 0, 0, AV_PIX_FMT_NONE);
  codec->sample_fmt = AV_SAMPLE_FMT_FLTP;
  codec->sample_rate = rate;
  codec->bit_rate = 96000;
  codec->time_base = {1, rate};
  codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  av_channel_layout_default(&codec->ch_layout, 1);
  require(avcodec_open2(codec.get(), encoder, nullptr), "opening the sound encoder");
  return codec;
}

/// The first `count` samples, silence where there are fewer.
void write_sound(AVCodecContext& codec, const Sound& sound, int64_t count, Muxer& muxer) {
  const auto add = [&](AVPacket& packet) { muxer.add_sound(packet); };
  const auto known = static_cast<int64_t>(sound.samples.size());
  for (int64_t at = 0; at < count; at += codec.frame_size) {
    const FramePtr frame(av_frame_alloc());
    frame->format = codec.sample_fmt;
    frame->nb_samples = static_cast<int>(std::min<int64_t>(codec.frame_size, count - at));
    frame->sample_rate = codec.sample_rate;
    frame->pts = at;
    av_channel_layout_copy(&frame->ch_layout, &codec.ch_layout);
    require(av_frame_get_buffer(frame.get(), 0), "making a frame of sound");
    auto* to = reinterpret_cast<float*>(frame->data[0]);
    const int64_t here = std::clamp<int64_t>(known - at, 0, frame->nb_samples);
    std::copy_n(sound.samples.data() + std::min(at, known), here, to);
    std::fill(to + here, to + frame->nb_samples, 0.0f);
    require(avcodec_send_frame(&codec, frame.get()), "encoding sound");
    drain(codec, add);
  }
  require(avcodec_send_frame(&codec, nullptr), "encoding sound");
  drain(codec, add);
}

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

void write_mp4(const Path& path, const Frames& frames) { write_mp4(path, frames, Sound{}); }

void write_mp4(const Path& path, const Frames& frames, const Sound& sound) {
  const int width = frames.width & ~1, height = frames.height & ~1;
  check_internal(frames.count > 0 && width > 0 && height > 0 && frames.fps > 0, "data.encode",
                 path.string() + ": a clip needs frames of at least 2x2 pixels and a rate");
  quiet_ffmpeg();
  const CodecPtr codec = open_video_encoder(width, height, frames.fps);
  const CodecPtr voice = sound.samples.empty() ? CodecPtr() : open_sound_encoder(sound.rate);
  const int64_t samples = voice ? std::llround(frames.count / frames.fps * sound.rate) : 0;
  // Room for the index in front of the frames, where players look first: at most 32 bytes a frame.
  const int64_t parts = frames.count + (voice ? samples / voice->frame_size : 0);
  Muxer muxer("mp4", *codec, {{"moov_size", 8192 + 64 * parts}}, voice.get());
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
  if (voice) write_sound(*voice, sound, samples, muxer);
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
