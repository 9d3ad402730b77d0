#include "tessera/data/video_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/data/ffmpeg.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/parquet.h"

namespace tessera::data {

FramePtr new_frame(AVPixelFormat format, int width, int height) {
  FramePtr frame(av_frame_alloc());
  frame->format = format;
  frame->width = width;
  frame->height = height;
  const int status = av_frame_get_buffer(frame.get(), 64);
  if (status < 0) throw Error(Exit::memory, "data.video", "no memory for a frame: " + ffmpeg_error(status));
  return frame;
}

namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;  // FFmpeg's own limit, in av_image_check_size
constexpr double kWidest = 1 << 20;                // pixels of a row
constexpr int64_t kLargest = int64_t{1} << 28;     // pixels of a frame that is resized to cover what is asked for
constexpr const char* kMend = "a file cut short must be copied again, another encoded again or removed";

/// FFmpeg's name of a file, or of the bytes of one that lies in an archive.
std::string url_of(const Path& path, const std::optional<InArchive>& place) {
  if (!place) return "file:" + path.string();
  const Member& member = place->member;
  return "subfile,,start," + std::to_string(member.begin) + ",end," + std::to_string(member.begin + member.bytes) +
         ",,:file:" + place->archive.string();
}

struct CloseInput {
  void operator()(AVFormatContext* format) const { avformat_close_input(&format); }
};

/// A file that is deflated in its archive, for FFmpeg to read from memory.
class InMemory {
 public:
  explicit InMemory(const Path& path) : bytes_(read_bytes(path)) {
    constexpr int kBuffer = 1 << 15;
    auto* buffer = static_cast<unsigned char*>(av_malloc(kBuffer));
    input_.reset(buffer ? avio_alloc_context(buffer, kBuffer, /*write_flag=*/0, this, read, nullptr, seek) : nullptr);
    if (!input_) av_free(buffer), throw Error(Exit::memory, "data.video", "no memory to read " + path.string());
  }
  InMemory(const InMemory&) = delete;
  AVIOContext* input() const { return input_.get(); }

 private:
  static int read(void* self, uint8_t* to, int most) {
    auto& file = *static_cast<InMemory*>(self);
    const size_t count = std::min(file.bytes_.size() - file.at_, static_cast<size_t>(most));
    if (count == 0) return AVERROR_EOF;
    std::memcpy(to, file.bytes_.data() + file.at_, count);
    file.at_ += count;
    return static_cast<int>(count);
  }
  static int64_t seek(void* self, int64_t offset, int whence) {
    auto& file = *static_cast<InMemory*>(self);
    const auto size = static_cast<int64_t>(file.bytes_.size());
    if (whence & AVSEEK_SIZE) return size;
    whence &= ~AVSEEK_FORCE;
    const int64_t from = whence == SEEK_CUR ? static_cast<int64_t>(file.at_) : whence == SEEK_END ? size : 0;
    if (offset < -from || offset > size - from) return AVERROR(EINVAL);
    file.at_ = static_cast<size_t>(from + offset);
    return from + offset;
  }
  struct Free {
    void operator()(AVIOContext* input) const {
      av_freep(&input->buffer);
      avio_context_free(&input);
    }
  };
  const std::string bytes_;
  size_t at_ = 0;
  std::unique_ptr<AVIOContext, Free> input_;
};

/// One file's video stream, decoded frame by frame.
class Source {
 public:
  explicit Source(const Path& path);

  VideoInfo info() const;
  double fps() const;
  int quarter_turns() const { return turns_; }           ///< clockwise, to be applied to what is decoded
  double pixel_aspect() const;                           ///< width of a pixel by its height
  const std::string& damage() const { return damage_; }  ///< why decoding stopped before the end of the file

  /// The next frame, its time in seconds since the first; false at the end or at the first damage.
  bool next(FramePtr& frame, double& time);

  /// Goes on from the last key frame at or before `seconds`, where the file has an index that knows it; else nothing
  /// changes. Before the first next() only.
  bool skip_to(double seconds);

 private:
  [[noreturn]] void fail(const std::string& what, int status = 0) const {
    throw UserError(Exit::input, "data.decode",
                    name_ + ": " + what + (status < 0 ? " (" + ffmpeg_error(status) + ")" : ""), kMend);
  }
  bool feed();

  std::string name_;
  std::unique_ptr<InMemory> inflated_;  ///< where it is deflated in its archive
  std::unique_ptr<AVFormatContext, CloseInput> format_;
  AVStream* stream_ = nullptr;
  CodecPtr codec_;
  PacketPtr packet_{av_packet_alloc()};
  bool is_image_ = false, first_ = true;
  int turns_ = 0;
  double origin_ = 0, last_ = 0;
  std::string damage_;
};

Source::Source(const Path& path) : name_(path.string()) {
  quiet_ffmpeg();
  check_input(is_file(path), "data.decode", name_ + ": no such file", "check data.path and data.metadata");

  // "file:" and the whitelist: a name is never a protocol, and a playlist in disguise opens nothing on a network.
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "file,subfile", 0);
  AVFormatContext* opened = nullptr;
  const auto place = find_in_archive(path);
  std::string url = url_of(path, place);
  if ((place && place->member.packed >= 0) || find_in_table(path)) {
    inflated_ = std::make_unique<InMemory>(path);
    opened = avformat_alloc_context();
    if (!opened) throw Error(Exit::memory, "data.video", "no memory to read " + name_);
    opened->pb = inflated_->input();
    url.clear();  // what it is is known by its bytes alone
  }
  int status = avformat_open_input(&opened, url.c_str(), nullptr, &options);
  av_dict_free(&options);
  if (status < 0) fail("cut short, or not a video or image that FFmpeg knows", status);
  format_.reset(opened);
  status = avformat_find_stream_info(opened, nullptr);
  if (status < 0) fail("its streams cannot be read", status);

  const AVCodec* decoder = nullptr;
  const int index = av_find_best_stream(opened, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
  if (index < 0 || !decoder || (opened->streams[index]->disposition & AV_DISPOSITION_ATTACHED_PIC))
    fail("no video stream");
  stream_ = opened->streams[index];
  for (unsigned i = 0; i < opened->nb_streams; ++i)
    if (opened->streams[i] != stream_) opened->streams[i]->discard = AVDISCARD_ALL;

  const std::string format_name = opened->iformat->name;
  is_image_ = format_name == "image2" || format_name.ends_with("_pipe");
  if (const uint8_t* matrix = av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, nullptr)) {
    const double angle = av_display_rotation_get(reinterpret_cast<const int32_t*>(matrix));  // counter-clockwise
    if (std::isfinite(angle)) turns_ = ((static_cast<int>(std::lround(-angle / 90)) % 4) + 4) % 4;
  }

  codec_.reset(avcodec_alloc_context3(decoder));
  avcodec_parameters_to_context(codec_.get(), stream_->codecpar);
  codec_->thread_count = 1;  // ranks prepare different clips at once; and damage is then reported at the frame it hits
  status = avcodec_open2(codec_.get(), decoder, nullptr);
  if (status < 0) fail(std::string("no decoder for ") + decoder->name, status);
  if (codec_->width > 0 && codec_->height > 0) return;
  if (!is_image_) fail("the video stream has no size");
  throw UserError(Exit::input, "data.decode",
                  name_ + ": the picture has no size that can be read: it is damaged, or has more than " +
                      std::to_string(kMostPixels / 1'000'000) + " million pixels, the most that is decoded",
                  "scale it down: pictures are scaled to data.size in any case");
}

double Source::fps() const {
  for (const AVRational rate : {stream_->avg_frame_rate, stream_->r_frame_rate})
    if (rate.num > 0 && rate.den > 0) return av_q2d(rate);
  return 25;  // what FFmpeg assumes of a stream without a rate
}

double Source::pixel_aspect() const {
  const AVRational aspect = av_guess_sample_aspect_ratio(format_.get(), stream_, nullptr);
  return aspect.num > 0 && aspect.den > 0 ? av_q2d(aspect) : 1;
}

VideoInfo Source::info() const {
  VideoInfo info;
  const double width = codec_->width * pixel_aspect();
  check_input(width >= 0.5 && width < kWidest, "data.decode",
              name_ + ": its pixels are said to be " + std::to_string(pixel_aspect()) + " times as wide as high, of " +
                  std::to_string(codec_->width) + " in a row",
              kMend);
  info.width = static_cast<int>(std::lround(width));
  info.height = codec_->height;
  if (turns_ % 2 == 1) std::swap(info.width, info.height);
  info.fps = fps();
  const double known = stream_->duration > 0 ? static_cast<double>(stream_->duration) * av_q2d(stream_->time_base)
                                             : std::max(0.0, static_cast<double>(format_->duration) / AV_TIME_BASE);
  info.frames = is_image_ ? 1 : stream_->nb_frames > 0 ? stream_->nb_frames : std::llround(known * info.fps);
  info.duration = known > 0 && !is_image_ ? known : static_cast<double>(info.frames) / info.fps;
  return info;
}

/// Gives the decoder the next packet, or at the end of the file the sign to empty itself; false when there is no more.
bool Source::feed() {
  if (!damage_.empty()) return false;
  for (;;) {
    int status = av_read_frame(format_.get(), packet_.get());
    if (status >= 0 && packet_->stream_index != stream_->index) {
      av_packet_unref(packet_.get());
      continue;
    }
    if (status >= 0 && (packet_->flags & AV_PKT_FLAG_CORRUPT)) damage_ = "the file ends within a frame";
    if (status < 0 && status != AVERROR_EOF) damage_ = ffmpeg_error(status);
    const bool usable = status >= 0 && damage_.empty();
    status = avcodec_send_packet(codec_.get(), usable ? packet_.get() : nullptr);
    av_packet_unref(packet_.get());
    if (status < 0 && damage_.empty() && status != AVERROR_EOF) damage_ = ffmpeg_error(status);
    return status >= 0;
  }
}

bool Source::next(FramePtr& frame, double& time) {
  frame.reset(av_frame_alloc());
  for (;;) {
    const int status = avcodec_receive_frame(codec_.get(), frame.get());
    if (status == AVERROR(EAGAIN)) {
      if (!feed()) return false;
      continue;
    }
    if (status < 0) {
      if (status != AVERROR_EOF && damage_.empty()) damage_ = ffmpeg_error(status);
      return false;
    }
    if ((frame->flags & AV_FRAME_FLAG_CORRUPT) || frame->decode_error_flags) {
      damage_ = "a frame is damaged";
      return false;
    }
    const bool stamped = frame->best_effort_timestamp != AV_NOPTS_VALUE;
    const double at =
        stamped ? static_cast<double>(frame->best_effort_timestamp) * av_q2d(stream_->time_base) : last_ + 1 / fps();
    if (std::exchange(first_, false)) origin_ = at;
    last_ = at;
    time = at - origin_;
    return true;
  }
}

bool Source::skip_to(double seconds) {
  if (is_image_ || avformat_index_get_entries_count(stream_) < 2) return false;
  FramePtr frame;
  double time = 0;
  if (!next(frame, time) || frame->best_effort_timestamp == AV_NOPTS_VALUE) return false;  // times count from it
  const auto stamp = static_cast<int64_t>(std::floor((origin_ + seconds) / av_q2d(stream_->time_base)));
  if (av_seek_frame(format_.get(), stream_->index, stamp, AVSEEK_FLAG_BACKWARD) < 0) return false;
  avcodec_flush_buffers(codec_.get());
  return true;
}

/// From a decoded frame to RGB at one size: resized to cover, cropped in the centre, turned as the file says.
class Fit {
 public:
  Fit(const VideoInfo& shown, int quarter_turns, const ClipSpec& spec)
      : turns_(quarter_turns),
        height_(spec.height > 0 ? spec.height : shown.height),
        width_(spec.width > 0 ? spec.width : shown.width) {
    const double scale =
        std::max(static_cast<double>(height_) / shown.height, static_cast<double>(width_) / shown.width);
    cover_height_ = std::max(height_, static_cast<int>(std::lround(shown.height * scale)));
    cover_width_ = std::max(width_, static_cast<int>(std::lround(shown.width * scale)));
    check_input(int64_t{cover_height_} * cover_width_ <= kLargest, "data.decode",
                "a frame of " + std::to_string(shown.width) + " x " + std::to_string(shown.height) +
                    " pixels would be " + std::to_string(cover_width_) + " x " + std::to_string(cover_height_) +
                    " to cover " + std::to_string(width_) + " x " + std::to_string(height_),
                "cut it to a shape nearer to that");
    const bool across = turns_ % 2 == 1;
    covered_ =
        new_frame(AV_PIX_FMT_RGB24, across ? cover_height_ : cover_width_, across ? cover_width_ : cover_height_);
  }

  int height() const { return height_; }
  int width() const { return width_; }

  void convert(const AVFrame& from, uint8_t* to) {
    const auto format = static_cast<AVPixelFormat>(from.format);
    scaler_.reset(sws_getCachedContext(
        scaler_.release(), from.width, from.height, format, covered_->width, covered_->height, AV_PIX_FMT_RGB24,
        SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP, nullptr, nullptr, nullptr));
    check_input(scaler_ != nullptr, "data.decode", "FFmpeg cannot turn this pixel format into RGB", kMend);
    // The matrix the stream names; BT.601 where it names none, as the ffmpeg program does.
    sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(from.colorspace), from.color_range == AVCOL_RANGE_JPEG,
                             sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
    sws_scale(scaler_.get(), from.data, from.linesize, 0, from.height, covered_->data, covered_->linesize);
    crop(to);
  }

 private:
  void crop(uint8_t* to) const {
    const int top = (cover_height_ - height_) / 2, left = (cover_width_ - width_) / 2;
    const int h = covered_->height, w = covered_->width;
    for (int y = 0; y < height_; ++y) {
      for (int x = 0; x < width_; ++x, to += 3) {
        const int Y = y + top, X = x + left;  // in the picture as shown
        const int row = turns_ == 0 ? Y : turns_ == 1 ? h - 1 - X : turns_ == 2 ? h - 1 - Y : X;
        const int column = turns_ == 0 ? X : turns_ == 1 ? Y : turns_ == 2 ? w - 1 - X : w - 1 - Y;
        std::memcpy(to, covered_->data[0] + row * static_cast<ptrdiff_t>(covered_->linesize[0]) + column * 3, 3);
      }
    }
  }

  int turns_, height_, width_, cover_height_ = 0, cover_width_ = 0;
  FramePtr covered_;
  ScalerPtr scaler_;
};

std::string rate_text(double fps) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g fps", fps);
  return text;
}

}  // namespace

bool has_video() { return true; }

VideoInfo probe_file(const Path& path) { return Source(path).info(); }

namespace {

/// The frames of decode_file, from where `source` stands; nothing when that turns out to be past the first of them.
std::optional<Frames> choose_frames(const Path& path, const ClipSpec& spec, Source& source, bool skipped) {
  Fit fit(source.info(), source.quarter_turns(), spec);
  Frames clip{.count = 0,
              .height = fit.height(),
              .width = fit.width(),
              .fps = spec.fps > 0 ? spec.fps : source.fps(),
              .rgb = {}};
  const auto complete = [&] { return spec.frames > 0 && clip.count == spec.frames; };
  const auto add = [&](const AVFrame& frame) {
    clip.rgb.resize(clip.rgb.size() + clip.frame_bytes());
    fit.convert(frame, clip.frame(clip.count++));
  };

  // `held` is chosen for every target time up to `until`: half way to the frame after it, or the end of the clip.
  FramePtr held, following;
  double held_time = 0, time = 0;
  int64_t decoded = 0;
  const auto choose = [&](double until) {
    if (spec.fps <= 0) {
      if (clip.count > 0 || spec.start <= until) add(*held);
      return;
    }
    while (!complete() && spec.start + clip.count / spec.fps <= until) add(*held);
  };
  while (!complete() && source.next(following, time)) {
    if (skipped && decoded == 0 && time > spec.start) return std::nullopt;
    if (decoded++ > 0) choose((held_time + time) / 2);
    std::swap(held, following);
    held_time = time;
  }
  const double shown_for = source.damage().empty() ? 1 - 1e-6 : 0.5;  // in frames; the next one would have been nearer
  if (held && !complete()) choose(held_time + shown_for / source.fps());

  if (complete() || (spec.frames == 0 && clip.count > 0 && source.damage().empty())) return clip;
  if (skipped) return std::nullopt;  // told as it is found from the start
  const std::string needed = spec.frames > 0 ? std::to_string(spec.frames) : "all";
  std::string what = path.string() + ": found " + std::to_string(clip.count) + " frames, needed " + needed + " at " +
                     rate_text(clip.fps) + "; the file gave " + std::to_string(decoded) + " at " +
                     rate_text(source.fps());
  if (!source.damage().empty()) throw UserError(Exit::input, "data.decode", what + ", then: " + source.damage(), kMend);
  throw UserError(Exit::input, "data.decode", what,
                  "lower data.frames, raise data.fps, or remove the clip; a file cut short must be copied again");
}

}  // namespace

Frames decode_file(const Path& path, const ClipSpec& spec) {
  constexpr double kWorthSkipping = 1;  // seconds; key frames are seldom nearer to each other
  if (spec.start > kWorthSkipping) {
    Source source(path);
    if (source.skip_to(spec.start))
      if (std::optional<Frames> clip = choose_frames(path, spec, source, /*skipped=*/true)) return std::move(*clip);
  }
  Source source(path);
  return *choose_frames(path, spec, source, /*skipped=*/false);
}

}  // namespace tessera::data
