#include "tessera/data/video_decode.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/data/ffmpeg.h"
#include "tessera/data/video_file.h"
#include "tessera/data/video_pixels.h"
#include "tessera/data/video_source.h"

namespace tessera::data {

namespace {

constexpr double kWhite = 203;       // nits of SDR white in HDR, BT.2408
constexpr double kMostNits = 10000;  // nits of PQ's signal 1
constexpr double kHlgScreen = 1000;  // nits, to which HLG's system gamma of 1.2 belongs
constexpr int kTable = 4096;

/// Scene light 0 to 1 of an HLG signal, BT.2100.
double hlg_to_scene(double signal) {
  constexpr double a = 0.17883277, b = 1 - 4 * a;
  const double c = 0.5 - a * std::log(4 * a);
  return signal <= 0.5 ? signal * signal / 3 : (std::exp((signal - c) / a) + b) / 12;
}

/// BT.2390's curve: nits on a screen of kWhite, of nits in pictures of up to `peak`.
double mapped(double nits, double peak) {
  if (peak <= kWhite) return std::min(nits, kWhite);
  const double top = nits_to_pq(peak), most = nits_to_pq(kWhite) / top, knee = 1.5 * most - 0.5;
  const double x = std::min(nits_to_pq(nits) / top, 1.0);
  if (x < knee) return nits;
  const double t = (x - knee) / (1 - knee), t2 = t * t, t3 = t2 * t;
  const double y =
      (2 * t3 - 3 * t2 + 1) * knee + (t3 - 2 * t2 + t) * (1 - knee) + (-2 * t3 + 3 * t2) * most;  // Hermite
  return pq_to_nits(y * top);
}

/// Tables over nits are by their fourth root, which spaces them nearly as eyes do.
float place_of(float nits) {
  return std::sqrt(std::sqrt(std::min(nits / static_cast<float>(kMostNits), 1.0F))) * (kTable - 1);
}

}  // namespace

double pq_to_nits(double signal) {
  constexpr double m1 = 1305.0 / 8192, m2 = 2523.0 / 32, c1 = 107.0 / 128, c2 = 2413.0 / 128, c3 = 2392.0 / 128;
  const double p = std::pow(std::clamp(signal, 0.0, 1.0), 1 / m2);
  return kMostNits * std::pow(std::max(p - c1, 0.0) / (c2 - c3 * p), 1 / m1);
}

double nits_to_pq(double nits) {
  constexpr double m1 = 1305.0 / 8192, m2 = 2523.0 / 32, c1 = 107.0 / 128, c2 = 2413.0 / 128, c3 = 2392.0 / 128;
  const double y = std::pow(std::clamp(nits / kMostNits, 0.0, 1.0), m1);
  return std::pow((c1 + c2 * y) / (1 + c3 * y), m2);
}

ToneMap::ToneMap(const From& from) : from_(from), linear_(1 << 16), gain_(kTable + 1), coded_(kTable) {
  for (size_t code = 0; code < linear_.size(); ++code) {
    const double signal = static_cast<double>(code) / static_cast<double>(linear_.size() - 1);
    linear_[code] = static_cast<float>(from.hlg ? hlg_to_scene(signal) : pq_to_nits(signal));
  }
  for (int i = 0; i <= kTable; ++i) {
    const double nits = kMostNits * std::pow(std::max(i, 1) / (kTable - 1.0), 4);
    gain_[static_cast<size_t>(i)] = static_cast<float>(mapped(nits, from.peak) / nits / kWhite);
  }
  for (int i = 0; i < kTable; ++i)  // BT.1886: the screen raises to the power of 2.4
    coded_[static_cast<size_t>(i)] = static_cast<uint8_t>(std::lround(255 * std::pow(i / (kTable - 1.0), 2 / 2.4)));
}

void ToneMap::convert(const uint16_t* from, uint8_t* to, int64_t pixels) const {
  // BT.2087: from the primaries of BT.2020 to those of BT.709
  constexpr float kToNarrow[3][3] = {
      {1.6605F, -0.5876F, -0.0728F}, {-0.1246F, 1.1329F, -0.0083F}, {-0.0182F, -0.1006F, 1.1187F}};
  for (int64_t i = 0; i < pixels; ++i, from += 3, to += 3) {
    float light[3] = {linear_[from[0]], linear_[from[1]], linear_[from[2]]};
    if (from_.hlg) {
      const float scene = 0.2627F * light[0] + 0.6780F * light[1] + 0.0593F * light[2];
      const float shown = static_cast<float>(kHlgScreen) * std::pow(scene, 0.2F);
      for (float& channel : light) channel *= shown;
    }
    float narrow[3] = {light[0], light[1], light[2]};
    if (from_.wide)
      for (size_t c = 0; c < 3; ++c)
        narrow[c] =
            std::max(kToNarrow[c][0] * light[0] + kToNarrow[c][1] * light[1] + kToNarrow[c][2] * light[2], 0.0F);
    // The brightest channel decides for all, which keeps the hue and clips none.
    const float place = place_of(std::max({narrow[0], narrow[1], narrow[2]}));
    const auto below = static_cast<size_t>(place);
    const float gain = gain_[below] + (place - static_cast<float>(below)) * (gain_[below + 1] - gain_[below]);
    for (size_t c = 0; c < 3; ++c)
      to[c] = coded_[static_cast<size_t>(std::lround(std::sqrt(std::min(narrow[c] * gain, 1.0F)) * (kTable - 1)))];
  }
}

namespace {

constexpr int kStill = 3;  // levels of 8 bits that noise may change a pixel by

/// A plane of samples of type T; `before` may be null.
template <class T>
struct Plane {
  const uint8_t *now, *before;
  uint8_t* to;
  ptrdiff_t now_row, before_row, to_row;
  int rows, samples;
  int still, most;  // in levels of the plane

  const T* row(int y) const { return reinterpret_cast<const T*>(now + y * now_row); }
  const T* row_before(int y) const { return reinterpret_cast<const T*>(before + y * before_row); }

  void fill(int first_field) const {
    for (int y = 0; y < rows; ++y) {
      T* out = reinterpret_cast<T*>(to + y * to_row);
      if (y % 2 == first_field)
        std::memcpy(out, row(y), static_cast<size_t>(samples) * sizeof(T));
      else
        fill_row(y, out);
    }
  }

  void fill_row(int y, T* out) const {
    const int above = y > 0 ? y - 1 : y + 1, below = y + 1 < rows ? y + 1 : y - 1;
    if (rows < 2) return static_cast<void>(std::memcpy(out, row(y), static_cast<size_t>(samples) * sizeof(T)));
    const bool wide = y >= 3 && y + 3 < rows;
    const T *a = row(above), *b = row(below), *own = row(y);
    const T *a2 = wide ? row(y - 3) : a, *b2 = wide ? row(y + 3) : b;
    const auto moves = [&](int x) {
      return std::abs(own[x] - row_before(y)[x]) > still || std::abs(a[x] - row_before(above)[x]) > still ||
             std::abs(b[x] - row_before(below)[x]) > still;
    };
    for (int x = 0; x < samples; ++x) {
      if (before && !moves(x)) {
        out[x] = own[x];
        continue;
      }
      const int sum = wide ? 9 * (a[x] + b[x]) - a2[x] - b2[x] : 8 * (a[x] + b[x]);
      out[x] = static_cast<T>(std::clamp((sum + 8) >> 4, 0, most));
    }
  }
};

/// Interlaced frames as frames of one moment, that of their first field.
/// The rows of the second field are kept where nothing moves since the frame before (null: it is not known), and are
/// interpolated from those of the first field elsewhere. A format whose samples are not whole bytes gives null.
FramePtr one_moment(const AVFrame& frame, const AVFrame* before, bool top_first) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* form = av_pix_fmt_desc_get(format);
  constexpr uint64_t kOther = AV_PIX_FMT_FLAG_BE | AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_PAL |
                              AV_PIX_FMT_FLAG_FLOAT | AV_PIX_FMT_FLAG_HWACCEL;
  if (!form || (form->flags & kOther) || form->comp[0].shift != 0 || form->comp[0].depth < 8) return nullptr;
  const bool same =
      before && before->format == frame.format && before->width == frame.width && before->height == frame.height;
  FramePtr to = new_frame(format, frame.width, frame.height);
  if (av_frame_copy_props(to.get(), &frame) < 0) throw Error(Exit::memory, "data.video", "no memory for a frame");
  const int depth = form->comp[0].depth;
  for (int p = 0; p < 4 && frame.data[p]; ++p) {
    const bool chroma = (p == 1 || p == 2) && !(form->flags & AV_PIX_FMT_FLAG_RGB);
    const int rows = chroma ? AV_CEIL_RSHIFT(frame.height, form->log2_chroma_h) : frame.height;
    const int bytes = av_image_get_linesize(format, frame.width, p);
    const auto fill = [&]<class T>(T) {
      const Plane<T> plane{frame.data[p],
                           same ? before->data[p] : nullptr,
                           to->data[p],
                           frame.linesize[p],
                           same ? before->linesize[p] : 0,
                           to->linesize[p],
                           rows,
                           bytes / static_cast<int>(sizeof(T)),
                           kStill << (depth - 8),
                           (1 << depth) - 1};
      plane.fill(top_first ? 0 : 1);
    };
    if (depth > 8)
      fill(uint16_t{});
    else
      fill(uint8_t{});
  }
  return to;
}

constexpr int64_t kLargest = int64_t{1} << 28;  // pixels of a frame that is resized to cover what is asked for

/// From a decoded frame to RGB at one size: opaque, in SDR, resized to cover, cropped in the centre, turned as the file
/// says.
class Fit {
 public:
  Fit(const Source& source, const ClipSpec& spec) : source_(source), spec_(spec), turn_(source.turn()) {
    const VideoInfo shown = source.info();
    height_ = spec.height > 0 ? spec.height : std::max(1, within(shown.height, spec.bars.top + spec.bars.bottom));
    width_ = spec.width > 0 ? spec.width : std::max(1, within(shown.width, spec.bars.left + spec.bars.right));
    const double high = shown.height * (1 - spec.bars.top - spec.bars.bottom);
    const double wide = shown.width * (1 - spec.bars.left - spec.bars.right);
    const double scale = std::max(height_ / high, width_ / wide);
    cover_height_ = std::max(height_, static_cast<int>(std::lround(shown.height * scale)));
    cover_width_ = std::max(width_, static_cast<int>(std::lround(shown.width * scale)));
    check_input(int64_t{cover_height_} * cover_width_ <= kLargest, "data.decode",
                "a frame of " + std::to_string(shown.width) + " x " + std::to_string(shown.height) +
                    " pixels would be " + std::to_string(cover_width_) + " x " + std::to_string(cover_height_) +
                    " to cover " + std::to_string(width_) + " x " + std::to_string(height_),
                "cut it to a shape nearer to that");
    covered_ = cover(AV_PIX_FMT_RGB24);
  }

  int height() const { return height_; }
  int width() const { return width_; }

  /// `before`: the frame before it in the file, or null.
  void convert(const AVFrame& frame, const AVFrame* before, uint8_t* to) {
    FramePtr moment;
    if (spec_.showing.deinterlace && !source_.picture() && source_.interlaced(frame))
      moment = one_moment(frame, before, source_.top_first(frame));
    const AVFrame& from = moment ? *moment : frame;
    const Traits traits = traits_of_colours(from, source_.picture());
    if (traits.hdr()) {
      map_tones(from, traits.has(Trait::hlg));
    } else {
      const FramePtr rgb = opaque_rgb(from, spec_.showing.background, source_.profile(), source_.picture());
      scale_frame(rgb ? *rgb : from, *covered_, scaler_);
    }
    crop(to);
  }

 private:
  static int within(int size, double cut) { return static_cast<int>(std::lround(size * (1 - cut))); }

  /// A frame of the size that covers what is asked for, lying as what is decoded lies.
  FramePtr cover(AVPixelFormat format) const {
    return new_frame(format, turn_.swap ? cover_height_ : cover_width_, turn_.swap ? cover_width_ : cover_height_);
  }

  void map_tones(const AVFrame& from, bool hlg) {
    if (!wide_) wide_ = cover(AV_PIX_FMT_RGB48LE);
    scale_frame(from, *wide_, scaler_);
    ToneMap::From form{.hlg = hlg, .wide = from.color_primaries != AVCOL_PRI_BT709};
    constexpr double kLeast = 100, kMost = 10000;
    if (const double peak = source_.peak(from); peak > 0) form.peak = std::clamp(peak, kLeast, kMost);
    if (!tones_ || tones_->from() != form) tones_.emplace(form);
    for (int y = 0; y < wide_->height; ++y)
      tones_->convert(
          reinterpret_cast<const uint16_t*>(wide_->data[0] + y * static_cast<ptrdiff_t>(wide_->linesize[0])),
          covered_->data[0] + y * static_cast<ptrdiff_t>(covered_->linesize[0]), wide_->width);
  }

  /// Where a side of `size` begins in its `cover`, of which such shares are cut off first.
  static int begin_of(int size, int cover, double before, double after) {
    const double inside = cover * (1 - before - after);
    return std::clamp(static_cast<int>(cover * before + (inside - size) / 2), 0, cover - size);
  }

  void crop(uint8_t* to) const {
    const int top = begin_of(height_, cover_height_, spec_.bars.top, spec_.bars.bottom);
    const int left = begin_of(width_, cover_width_, spec_.bars.left, spec_.bars.right);
    const int h = covered_->height, w = covered_->width;
    for (int y = 0; y < height_; ++y) {
      for (int x = 0; x < width_; ++x, to += 3) {
        const int row = turn_.row(y + top, x + left, h), column = turn_.column(y + top, x + left, w);
        std::memcpy(to, covered_->data[0] + row * static_cast<ptrdiff_t>(covered_->linesize[0]) + column * 3, 3);
      }
    }
  }

  const Source& source_;
  const ClipSpec spec_;
  const Turn turn_;
  int height_ = 0, width_ = 0, cover_height_ = 0, cover_width_ = 0;
  FramePtr covered_, wide_;
  ScalerPtr scaler_;
  std::optional<ToneMap> tones_;
};

std::string rate_text(double fps) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g fps", fps);
  return text;
}

}  // namespace

bool has_video() { return true; }

VideoInfo probe_file(const Path& path) { return Source(path).counted(); }

void check_hdr(const std::string& name, const Traits& traits, const Showing& showing) {
  check_input(showing.tone_map || !traits.hdr(), "data.decode",
              name + ": is HDR (" + (traits.has(Trait::hlg) ? "HLG" : "PQ") + "), and data.hdr = \"refuse\"",
              "export it as SDR, remove it, or set data.hdr = \"tonemap\"");
}

namespace {

/// The frames of decode_file, from where `source` stands; nothing when that turns out to be past the first of them.
std::optional<Frames> choose_frames(const Path& path, const ClipSpec& spec, Source& source, bool skipped) {
  check_hdr(path.string(), source.info().traits, spec.showing);
  Fit fit(source, spec);
  Frames clip{.count = 0,
              .height = fit.height(),
              .width = fit.width(),
              .fps = spec.fps > 0 ? spec.fps : source.fps(),
              .rgb = {}};
  const auto complete = [&] { return spec.frames > 0 && clip.count == spec.frames; };
  // `held` is chosen for every target time up to `until`: half way to the frame after it, or the end of the clip.
  FramePtr before, held, following;
  const auto add = [&] {
    clip.rgb.resize(clip.rgb.size() + clip.frame_bytes());
    fit.convert(*held, before.get(), clip.frame(clip.count++));
  };
  double held_time = 0, time = 0;
  int64_t decoded = 0;
  const auto choose = [&](double until) {
    if (spec.fps <= 0) {
      if (clip.count > 0 || spec.start <= until) add();
      return;
    }
    while (!complete() && spec.start + clip.count / spec.fps <= until) add();
  };
  while (!complete() && source.next(following, time)) {
    if (skipped && decoded == 0 && time > spec.start) return std::nullopt;
    if (decoded++ > 0) choose((held_time + time) / 2);
    before = std::move(held), held = std::move(following);
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
  if (const int64_t listed = source.listed(); source.damage().empty() && decoded < listed)
    throw UserError(Exit::input, "data.decode", what + ", and lists " + std::to_string(listed), kMendFile);
  if (!source.damage().empty())
    throw UserError(Exit::input, "data.decode", what + ", then: " + source.damage(), kMendFile);
  throw UserError(Exit::input, "data.decode", what, "lower data.frames, raise data.fps, or remove the clip");
}

}  // namespace

Frames decode_file(const Path& path, const ClipSpec& spec, VideoInfo* found) {
  constexpr double kWorthSkipping = 1;  // seconds; key frames are seldom nearer to each other
  constexpr double kBefore = 2;         // frames that one moment of an interlaced frame is made with
  if (spec.start > kWorthSkipping) {
    Source source(path);
    const bool fields = source.info().traits.has(Trait::interlaced);
    if (source.skip_to(spec.start - (fields ? kBefore / source.fps() : 0)))
      if (std::optional<Frames> clip = choose_frames(path, spec, source, /*skipped=*/true)) return std::move(*clip);
  }
  Source source(path);
  if (found) *found = source.info();
  return *choose_frames(path, spec, source, /*skipped=*/false);
}

}  // namespace tessera::data
