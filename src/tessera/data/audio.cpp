#include "tessera/data/audio.h"

extern "C" {
#include <libswresample/swresample.h>
}

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/data/ffmpeg.h"

namespace tessera::data {

namespace {

constexpr const char* kMendSound = "a file cut short must be copied again, another encoded again or removed";

struct CloseSound {
  void operator()(AVFormatContext* format) const { avformat_close_input(&format); }
};
using FormatPtr = std::unique_ptr<AVFormatContext, CloseSound>;
using ResamplerPtr = std::unique_ptr<SwrContext, FreeByAddress<swr_free>>;

[[noreturn]] void fail_sound(const Path& path, const std::string& what, int status = 0) {
  throw UserError(Exit::input, "data.sound",
                  path.string() + ": " + what + (status < 0 ? " (" + ffmpeg_error(status) + ")" : ""), kMendSound);
}

FormatPtr open_file(const Path& path) {
  quiet_ffmpeg();
  check_input(std::filesystem::is_regular_file(path), "data.sound", path.string() + ": no such file",
              "check the audio column, which is relative to data.path");
  // "file:" and the whitelist: a name is never a protocol, and a playlist in disguise opens nothing on a network.
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "file", 0);
  AVFormatContext* opened = nullptr;
  int status = avformat_open_input(&opened, ("file:" + path.string()).c_str(), nullptr, &options);
  av_dict_free(&options);
  if (status < 0) fail_sound(path, "cut short, or no audio or video that FFmpeg knows", status);
  FormatPtr format(opened);
  status = avformat_find_stream_info(opened, nullptr);
  if (status < 0) fail_sound(path, "its streams cannot be read", status);
  return format;
}

/// One file's sound track, decoded to mono samples at one rate.
class Track {
 public:
  Track(const Path& path, int rate) : path_(path), rate_(rate), format_(open_file(path)) {
    const AVCodec* decoder = nullptr;
    const int index = av_find_best_stream(format_.get(), AVMEDIA_TYPE_AUDIO, -1, -1, &decoder, 0);
    if (index < 0 || !decoder)
      throw UserError(Exit::input, "data.sound", path.string() + ": has no audio track",
                      "name an audio file for the clip in a column audio, or remove the clip");
    stream_ = format_->streams[index];
    for (unsigned i = 0; i < format_->nb_streams; ++i)
      if (format_->streams[i] != stream_) format_->streams[i]->discard = AVDISCARD_ALL;
    codec_.reset(avcodec_alloc_context3(decoder));
    avcodec_parameters_to_context(codec_.get(), stream_->codecpar);
    codec_->pkt_timebase = stream_->time_base;
    codec_->thread_count = 1;
    const int status = avcodec_open2(codec_.get(), decoder, nullptr);
    if (status < 0) fail_sound(path, std::string("no decoder for ") + decoder->name, status);
  }

  /// All samples up to `end` (0: all there are).
  std::vector<float> decode(size_t end) {
    const FramePtr frame(av_frame_alloc());
    const PacketPtr packet(av_packet_alloc());
    const auto enough = [&] { return end > 0 && samples_.size() >= end; };
    while (!enough()) {
      const int status = av_read_frame(format_.get(), packet.get());
      if (status >= 0 && packet->stream_index != stream_->index) {
        av_packet_unref(packet.get());
        continue;
      }
      if (status < 0 && status != AVERROR_EOF) fail_sound(path_, "its audio is damaged", status);
      const int sent = avcodec_send_packet(codec_.get(), status >= 0 ? packet.get() : nullptr);
      av_packet_unref(packet.get());
      if (sent < 0) fail_sound(path_, "its audio is damaged", sent);
      while (avcodec_receive_frame(codec_.get(), frame.get()) >= 0) add(*frame);
      if (status == AVERROR_EOF) break;
    }
    if (resampler_ && !enough()) convert(nullptr, 0);
    return std::move(samples_);
  }

 private:
  void add(const AVFrame& frame) {
    if (!resampler_) open_resampler(frame);
    convert(const_cast<const uint8_t**>(frame.extended_data), frame.nb_samples);
  }

  void open_resampler(const AVFrame& frame) {
    AVChannelLayout mono{}, from{};  // which copying into them frees
    av_channel_layout_default(&mono, 1);
    if (frame.ch_layout.order == AV_CHANNEL_ORDER_UNSPEC)
      av_channel_layout_default(&from, frame.ch_layout.nb_channels);
    else
      av_channel_layout_copy(&from, &frame.ch_layout);
    // Its filters take memory by the ratio of the two rates.
    constexpr int kLeastRate = 1'000, kMostRate = 768'000;
    if (frame.sample_rate < kLeastRate || frame.sample_rate > kMostRate)
      fail_sound(path_, "claims " + std::to_string(frame.sample_rate) + " samples a second, expected " +
                            std::to_string(kLeastRate) + " to " + std::to_string(kMostRate));
    SwrContext* made = nullptr;
    int status = swr_alloc_set_opts2(&made, &mono, AV_SAMPLE_FMT_FLT, rate_, &from,
                                     static_cast<AVSampleFormat>(frame.format), frame.sample_rate, 0, nullptr);
    resampler_.reset(made);
    // Channels are averaged, so that the loudest sum stays in range; by default their power would be kept.
    if (status >= 0) status = av_opt_set_double(made, "rematrix_maxval", 1.0, 0);
    if (status >= 0) status = swr_init(made);
    if (status < 0) fail_sound(path_, "its audio cannot be resampled", status);
    // A track may begin after the picture: silence until then. What stands before time zero was cut by the decoder.
    const double origin =
        format_->start_time == AV_NOPTS_VALUE ? 0 : static_cast<double>(format_->start_time) / AV_TIME_BASE;
    if (frame.best_effort_timestamp == AV_NOPTS_VALUE) return;
    const double begins = static_cast<double>(frame.best_effort_timestamp) * av_q2d(stream_->time_base) - origin;
    constexpr double kLatest = 24 * 3600;
    if (begins > kLatest) fail_sound(path_, "its first sample claims to come after a day");
    if (begins > 0) samples_.resize(static_cast<size_t>(std::llround(begins * rate_)), 0.0f);
  }

  void convert(const uint8_t** input, int count) {
    const int room = swr_get_out_samples(resampler_.get(), count);
    const size_t known = samples_.size();
    samples_.resize(known + static_cast<size_t>(std::max(room, 0)));
    auto* to = reinterpret_cast<uint8_t*>(samples_.data() + known);
    const int made = swr_convert(resampler_.get(), &to, room, input, count);
    if (made < 0) fail_sound(path_, "its audio cannot be resampled", made);
    samples_.resize(known + static_cast<size_t>(made));
  }

  const Path path_;
  const int rate_;
  FormatPtr format_;
  AVStream* stream_ = nullptr;
  CodecPtr codec_;
  ResamplerPtr resampler_;
  std::vector<float> samples_;
};

}  // namespace

bool has_sound(const Path& path) {
  const FormatPtr format = open_file(path);
  return av_find_best_stream(format.get(), AVMEDIA_TYPE_AUDIO, -1, -1, nullptr, 0) >= 0;
}

Sound decode_sound(const Path& path, const SoundSpec& spec) {
  const auto samples_in = [&](double seconds) { return static_cast<size_t>(std::llround(seconds * spec.rate)); };
  const size_t begin = samples_in(spec.start), end = spec.seconds > 0 ? samples_in(spec.start + spec.seconds) : 0;
  std::vector<float> all = Track(path, spec.rate).decode(end);
  if (end > 0 && all.size() > end) all.resize(end);
  check_input(all.size() > begin, "data.sound",
              path.string() + ": its audio ends after " + std::to_string(static_cast<double>(all.size()) / spec.rate) +
                  " s, the clip begins at " + std::to_string(spec.start) + " s",
              "give audio as long as the video, or remove the clip");
  all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(begin));
  return {spec.rate, std::move(all)};
}

}  // namespace tessera::data
