// HDR as SDR, and one moment of interlaced frames.
#include "data/media.h"
#include "tessera/data/clips.h"
#include "tessera/data/video_decode.h"

namespace tessera::data {

namespace {

/// What a tone map makes of one grey.
int grey_of(const ToneMap& map, double signal) {
  const auto code = static_cast<uint16_t>(std::lround(signal * 65535));
  const uint16_t from[3] = {code, code, code};
  uint8_t to[3] = {};
  map.convert(from, to, 1);
  EXPECT_NEAR(to[0], to[1], 1);
  EXPECT_NEAR(to[1], to[2], 1);
  return to[1];
}

/// A level of BT.1886 that a screen with white at 203 nits shows so many nits at.
double level_of(double nits) { return 255 * std::pow(nits / 203, 1 / 2.4); }

}  // namespace

TEST(ToneMap, ThePqCurveHasTheValuesOfTheStandard) {
  // SMPTE ST 2084, and BT.2408 for diffuse white
  for (const auto& [nits, signal] : {std::pair(0.0, 0.0),
                                     {1.0, 0.1499},
                                     {10.0, 0.2997},
                                     {100.0, 0.5081},
                                     {203.0, 0.5807},
                                     {1000.0, 0.7518},
                                     {10000.0, 1.0}}) {
    EXPECT_NEAR(nits_to_pq(nits), signal, 1e-4) << nits;
    EXPECT_NEAR(pq_to_nits(nits_to_pq(nits)), nits, 1e-6 * nits + 1e-9);
  }
}

TEST(ToneMap, DarkIsKeptAndBrightIsCompressedUpToThePeak) {
  for (const double peak : {400.0, 1000.0, 4000.0, 10000.0}) {
    const ToneMap map({.peak = peak});
    // Below the knee, 1.5 times the target's signal less 0.5 of the source's, light is what it was.
    const double knee = pq_to_nits(1.5 * nits_to_pq(203) - 0.5 * nits_to_pq(peak));
    for (const double nits : {0.5, 2.0, knee / 4, knee / 2, knee * 0.99})
      EXPECT_NEAR(grey_of(map, nits_to_pq(nits)), level_of(nits), 1) << nits << " of " << peak;
    int before = -1;
    for (int i = 0; i <= 256; ++i) {
      const int now = grey_of(map, i / 256.0);
      EXPECT_GE(now, before) << i;
      before = now;
    }
    EXPECT_EQ(grey_of(map, nits_to_pq(peak)), 255);
    EXPECT_EQ(grey_of(map, 1), 255);
    EXPECT_EQ(grey_of(map, 0), 0);
    EXPECT_LT(grey_of(map, nits_to_pq(203)), 255) << "white leaves room for what is brighter";
    EXPECT_GT(grey_of(map, nits_to_pq(203)), 190);
  }
  // BT.2390's spline by hand, of 203 nits in pictures of 1000: a third of the way from the knee to the peak comes to 159 nits.
  EXPECT_NEAR(grey_of(ToneMap({.peak = 1000}), nits_to_pq(203)), level_of(159.04), 1);
}

TEST(ToneMap, HlgIsShownOnAScreenOf1000Nits) {
  const ToneMap hlg({.hlg = true}), pq({});
  // BT.2408: diffuse white has the HLG signal 0.75
  EXPECT_NEAR(grey_of(hlg, 0.75), grey_of(pq, nits_to_pq(203)), 1);
  EXPECT_EQ(grey_of(hlg, 1), 255);
  EXPECT_EQ(grey_of(hlg, 0), 0);
  const double scene = 0.25 * 0.25 / 3;
  EXPECT_NEAR(grey_of(hlg, 0.25), level_of(1000 * std::pow(scene, 1.2)), 1);
}

TEST(ToneMap, ColoursOfBt2020AreThoseOfBt709) {
  const ToneMap wide({}), narrow({.wide = false});
  // The red of BT.709 at 20 nits, in the primaries of BT.2020
  const double light[3] = {20 * 0.6274, 20 * 0.0691, 20 * 0.0164};
  uint16_t from[3];
  for (size_t c = 0; c < 3; ++c) from[c] = static_cast<uint16_t>(std::lround(nits_to_pq(light[c]) * 65535));
  uint8_t to[3];
  wide.convert(from, to, 1);
  EXPECT_NEAR(to[0], level_of(20), 2);
  EXPECT_LE(to[1], 16);
  EXPECT_LE(to[2], 16);
  narrow.convert(from, to, 1);
  EXPECT_NEAR(to[1], level_of(light[1]), 2);
}

class MediaLight : public FolderTest {
 protected:
  /// A grey picture of this signal, coded as HDR; `peak`: nits of the screen that it was made on, which the file tells.
  Path hdr(const std::string& name, double signal, AVColorTransferCharacteristic transfer, int peak = 0) const {
    std::vector<FramePtr> frames;
    for (int i = 0; i < 3; ++i) {
      FramePtr frame = new_frame(AV_PIX_FMT_YUV420P10, kWidth, kHeight);
      const auto luma = static_cast<uint16_t>(std::lround(64 + signal * 876));
      for (int p = 0; p < 3; ++p)
        for (int y = 0; y < (p == 0 ? kHeight : kHeight / 2); ++y)
          std::fill_n(reinterpret_cast<uint16_t*>(frame->data[p] + static_cast<ptrdiff_t>(y) * frame->linesize[p]),
                      p == 0 ? kWidth : kWidth / 2, static_cast<uint16_t>(p == 0 ? luma : 512));
      frames.push_back(std::move(frame));
    }
    VideoForm form{"matroska", "ffv1"};
    form.set = [&](AVCodecContext& codec) {
      codec.color_trc = transfer, codec.color_primaries = AVCOL_PRI_BT2020, codec.colorspace = AVCOL_SPC_BT2020_NCL;
      codec.color_range = AVCOL_RANGE_MPEG;
      if (peak > 0) tell_peak(codec, peak);
    };
    return write(name, video_file(form, frames));
  }
  static void tell_peak(AVCodecContext& codec, int peak) {
    size_t size = 0;
    AVMasteringDisplayMetadata* screen = av_mastering_display_metadata_alloc();
    size = sizeof *screen;
    screen->has_luminance = 1, screen->min_luminance = {1, 100}, screen->max_luminance = {peak, 1};
    codec.coded_side_data = static_cast<AVPacketSideData*>(av_mallocz(sizeof *codec.coded_side_data));
    *codec.coded_side_data = {reinterpret_cast<uint8_t*>(screen), size, AV_PKT_DATA_MASTERING_DISPLAY_METADATA};
    codec.nb_coded_side_data = 1;
  }

  static constexpr int kMoment = 4;  // columns that the bar moves from one field to the next
  /// A white bar that moves from field to field, on a still pattern of single rows.
  Path interlaced(const std::string& name, bool top_first, AVPixelFormat format = AV_PIX_FMT_YUV422P,
                  int count = 6) const {
    std::vector<FramePtr> frames;
    for (int i = 0; i < count; ++i) {
      frames.push_back(painted(format, kWidth, kHeight, [&](int x, int y) {
        const bool second = (y % 2 == 0) != top_first;
        const int left = 8 + kMoment * (2 * (i % 6) + second);
        if (y >= 16) return y % 4 < 2 ? Rgba{200, 200, 200, 255} : Rgba{40, 40, 40, 255};
        return x >= left && x < left + 8 ? Rgba{255, 255, 255, 255} : Rgba{0, 0, 0, 255};
      }));
      frames.back()->interlaced_frame = 1, frames.back()->top_field_first = top_first;
    }
    VideoForm form{name.ends_with(".mov") ? "mov" : "matroska", "ffv1"};
    form.set = [&](AVCodecContext& codec) { codec.field_order = top_first ? AV_FIELD_TT : AV_FIELD_BB; };
    return write(name, video_file(form, frames));
  }
  /// How far rows of the moving part are from those beside them.
  static int combing(const Frames& clip, int frame) {
    int most = 0;
    for (int y = 3; y < 12; ++y)
      for (int x = 0; x < kWidth; ++x)
        most = std::max(most, std::abs(pixel(clip, frame, y, x)[1] - pixel(clip, frame, y + 1, x)[1]));
    return most;
  }
};

TEST_F(MediaLight, HdrIsToneMappedOrRefused) {
  const ToneMap pq({}), hlg({.hlg = true});
  for (const double signal : {0.1, 0.3, 0.5, 0.6, 0.75, 1.0}) {
    const Path a = hdr("pq.mkv", signal, AVCOL_TRC_SMPTE2084), b = hdr("hlg.mkv", signal, AVCOL_TRC_ARIB_STD_B67);
    for (const ClipSpec& spec : {ClipSpec{}, ClipSpec{.frames = 1, .height = 16, .width = 16}}) {
      EXPECT_NEAR(pixel(decode_clip(a, spec), 0, 8, 8)[1], grey_of(pq, signal), 2) << signal;
      EXPECT_NEAR(pixel(decode_clip(b, spec), 0, 8, 8)[1], grey_of(hlg, signal), 2) << signal;
    }
  }
  const Path file = folder_ / "hlg.mkv";
  EXPECT_EQ(probe(file).traits.names(), (std::vector<std::string>{"hlg"}));
  EXPECT_EQ(probe(folder_ / "pq.mkv").traits.names(), (std::vector<std::string>{"pq"}));
  expect_error(Exit::input, {"hlg.mkv", "HDR (HLG)", "data.hdr"},
               [&] { decode_clip(file, {.showing = {.tone_map = false}}); });
  const Items items = {{file, {"x"}, file.string()}, {hdr("sdr.mkv", 0.5, AVCOL_TRC_BT709), {"x"}, "sdr.mkv"}};
  Problems told(/*strict=*/false), refused(/*strict=*/false);
  ClipRules rules{.buckets = {{3, 32, 32}}};
  EXPECT_EQ(plan_clips(items, Probes(), rules, told).clips.size(), 2u);
  ASSERT_EQ(told.notes().size(), 1u);
  EXPECT_NE(told.notes()[0].find("1 file is HDR (PQ or HLG): tone-mapped to SDR"), std::string::npos)
      << told.notes()[0];
  rules.showing.tone_map = false;
  EXPECT_EQ(plan_clips(items, Probes(), rules, refused).clips.size(), 1u);
  EXPECT_NE(refused.text().find("hlg.mkv: is HDR (HLG)"), std::string::npos) << refused.text();
}

TEST_F(MediaLight, InterlacedFramesShowOneMoment) {
  for (const AVPixelFormat format : {AV_PIX_FMT_YUV422P, AV_PIX_FMT_YUV444P, AV_PIX_FMT_YUV422P10, AV_PIX_FMT_GRAY8})
    for (const bool top_first : {true, false}) {
      const std::string name = std::string(av_get_pix_fmt_name(format)) + (top_first ? " top" : " bottom");
      const Path file = interlaced("a.mkv", top_first, format);
      EXPECT_TRUE(probe(file).traits.has(Trait::interlaced)) << name;
      const Frames clip = decode_clip(file, {}), off = decode_clip(file, {.showing = {.deinterlace = false}});
      for (int f = 1; f < 6; ++f) {
        EXPECT_LE(combing(clip, f), 16) << name << " " << f;
        EXPECT_GE(combing(off, f), 200) << name << " " << f;
        const int left = 8 + kMoment * 2 * f;  // the first moment
        EXPECT_GT(pixel(clip, f, 8, left + 1)[1], 200) << name;
        EXPECT_GT(pixel(clip, f, 8, left + 6)[1], 200) << name;
        EXPECT_LT(pixel(clip, f, 8, left + 9)[1], 50) << name;
        for (int y = 20; y < 30; ++y)  // what stands still keeps each of its rows
          EXPECT_NEAR(pixel(clip, f, y, 40)[1], pixel(off, f, y, 40)[1], 1) << name << " " << f << " " << y;
      }
      // A part from the middle on is what decoding from the start gives.
      const Frames part = decode_clip(file, {.frames = 2, .start = 4 / 16.0});
      for (int f = 0; f < 2; ++f)
        EXPECT_TRUE(std::equal(part.frame(f), part.frame(f) + part.frame_bytes(), clip.frame(f + 4))) << name;
    }
  const Path file = folder_ / "a.mkv";
  const Items items = {{file, {"x"}, file.string()}};
  for (const bool on : {true, false}) {
    Problems problems;
    const ClipPlan plan =
        plan_clips(items, Probes(), {.buckets = {{4, 32, 64}}, .showing = {.deinterlace = on}}, problems);
    ASSERT_EQ(problems.notes().size(), 1u);
    EXPECT_NE(problems.notes()[0].find(on ? "interlaced: deinterlaced" : "interlaced: not deinterlaced"),
              std::string::npos);
    EXPECT_EQ(plan.preprocessing(plan.clips[0]), on ? "cover+crop fps=0 deinterlaced" : "cover+crop fps=0");
  }
}

TEST_F(MediaLight, APeakThatTheFileTellsIsWhatTonesAreMappedFrom) {
  for (const int peak : {400, 4000}) {
    const ToneMap map({.peak = static_cast<double>(peak)});
    const Path file = hdr("peak.mkv", 0.55, AVCOL_TRC_SMPTE2084, peak);
    EXPECT_NEAR(pixel(decode_clip(file, {}), 0, 8, 8)[1], grey_of(map, 0.55), 2) << peak;
    EXPECT_GT(std::abs(grey_of(map, 0.55) - grey_of(ToneMap({}), 0.55)), 4) << "which is another grey than without it";
  }
  EXPECT_NEAR(pixel(decode_clip(hdr("dark.mkv", 0.4, AVCOL_TRC_SMPTE2084, 1), {}), 0, 8, 8)[1],
              grey_of(ToneMap({.peak = 100}), 0.4), 2)
      << "no screen is darker than 100 nits";
}

// Where decoding begins at a key frame, the frame before the clip's first is decoded too: what stands still keeps its rows.
TEST_F(MediaLight, AnInterlacedClipFromTheMiddleIsMadeWithTheFrameBeforeIt) {
  const Path file = interlaced("a.mov", /*top_first=*/true, AV_PIX_FMT_YUV422P, 48);  // its index knows every frame
  const Frames whole = decode_clip(file, {});
  ASSERT_EQ(whole.count, 48);
  for (const int begin : {20, 24, 36, 45}) {  // every twelfth is a key frame
    const Frames part = decode_clip(file, {.frames = 2, .start = begin / 16.0});
    for (int f = 0; f < 2; ++f)
      EXPECT_TRUE(std::equal(part.frame(f), part.frame(f) + part.frame_bytes(), whole.frame(begin + f))) << begin;
  }
}

TEST_F(MediaLight, TheLastRowOfAnInterlacedFrameOfOddHeightHasItsColour) {
  std::vector<FramePtr> frames;
  for (int i = 0; i < 3; ++i) {
    frames.push_back(painted(AV_PIX_FMT_YUV420P, kWidth, 33, [](int, int) { return Rgba{220, 60, 60, 255}; }));
    frames.back()->interlaced_frame = 1, frames.back()->top_field_first = 1;
  }
  VideoForm form{"matroska", "ffv1"};
  form.set = [](AVCodecContext& codec) { codec.field_order = AV_FIELD_TT; };
  const Frames clip = decode_clip(write("odd.mkv", video_file(form, frames)), {});
  ASSERT_EQ(clip.height, 33);
  for (int f = 0; f < 3; ++f)
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(pixel(clip, f, 32, 8)[c], pixel(clip, f, 16, 8)[c], 2) << f << " " << c;
}

TEST_F(MediaLight, MpegFramesThatSayTheyAreInterlacedAreDeinterlaced) {
  std::vector<FramePtr> frames;
  for (int i = 0; i < 5; ++i) {
    frames.push_back(painted(AV_PIX_FMT_YUV420P, kWidth, kHeight, [&](int x, int y) {
      const int left = 8 + 4 * (2 * i + y % 2);
      return x >= left && x < left + 8 ? Rgba{255, 255, 255, 255} : Rgba{0, 0, 0, 255};
    }));
    frames.back()->interlaced_frame = 1, frames.back()->top_field_first = 1;
  }
  VideoForm form{"matroska", "mpeg2video", 25};
  form.set = [](AVCodecContext& codec) {
    codec.flags |= AV_CODEC_FLAG_INTERLACED_DCT | AV_CODEC_FLAG_INTERLACED_ME | AV_CODEC_FLAG_QSCALE;
    codec.field_order = AV_FIELD_TT, codec.global_quality = FF_QP2LAMBDA;
  };
  const Path file = write("a.mkv", video_file(form, frames));
  EXPECT_TRUE(probe(file).traits.has(Trait::interlaced));
  EXPECT_LE(combing(decode_clip(file, {}), 3), 60);
  EXPECT_GE(combing(decode_clip(file, {.showing = {.deinterlace = false}}), 3), 150);
  form.set = [](AVCodecContext&) {};
  for (FramePtr& frame : frames) frame->interlaced_frame = 0;
  EXPECT_FALSE(probe(write("b.mkv", video_file(form, frames))).traits.has(Trait::interlaced));
}

}  // namespace tessera::data
