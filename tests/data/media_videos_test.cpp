// Videos as the ffmpeg program shows them: how many frames, turned, composed, in which colours, one moment a frame.
#include "data/media.h"
#include "tessera/data/audio.h"
#include "tessera/data/clips.h"
#include "tessera/data/files/file_kinds.h"

namespace tessera::data {

namespace {

Rgba here(int x, int y) { return quarters(x, y, kWidth, kHeight); }

/// Grey frames, each brighter than the one before.
std::vector<FramePtr> greys(int count, AVPixelFormat format = AV_PIX_FMT_YUV420P, int side = 32) {
  std::vector<FramePtr> frames;
  for (int i = 0; i < count; ++i)
    frames.push_back(painted(format, side, side, [&](int, int) {
      return Rgba{20 + 4 * i, 20 + 4 * i, 20 + 4 * i, 255};
    }));
  return frames;
}
std::vector<FramePtr> stills(int count, AVPixelFormat format, const Paint& paint = here) {
  std::vector<FramePtr> frames;
  for (int i = 0; i < count; ++i) frames.push_back(painted(format, kWidth, kHeight, paint));
  return frames;
}

}  // namespace

class MediaVideos : public FolderTest {
 protected:
  Path make(const std::string& name, const VideoForm& form, const std::vector<FramePtr>& frames) const {
    return write(name, video_file(form, frames));
  }
  /// What probing says must be what decoding gives, at any rate.
  void expect_frames(const Path& file, int64_t frames, bool counted) const {
    const VideoInfo info = probe(file);
    EXPECT_EQ(info.frames, frames) << file;
    EXPECT_EQ(info.counted, counted) << file;
    EXPECT_FALSE(info.picture) << file;
    // Stamps in milliseconds may let the last frame last a little longer.
    const bool rounded = file.extension() == ".mkv" || file.extension() == ".webm";
    for (const double fps : {0.0, 8.0, 16.0, 24.0, 25.0, 60.0}) {
      const int count = decode_clip(file, {.frames = 0, .fps = fps}).count;
      EXPECT_GE(count, frames_at(info, fps)) << file << " " << fps;
      if (frames > 1) EXPECT_LE(count, frames_at(info, fps) + rounded) << file << " " << fps;
    }
  }
  Items items(const std::vector<std::string>& names) const {
    Items all;
    for (const std::string& name : names) all.push_back({folder_ / name, {"x"}, (folder_ / name).string()});
    return all;
  }
};

TEST_F(MediaVideos, FramesAreCountedWhateverTheContainerSays) {
  const VideoForm ffv1{"matroska", "ffv1"};
  expect_frames(make("a.mkv", ffv1, greys(36)), 36, true);
  VideoForm late = ffv1;
  late.first = 48;  // three seconds
  expect_frames(make("late.mkv", late, greys(36)), 36, true);
  expect_frames(make("one.mkv", ffv1, greys(1)), 1, true);
  expect_frames(make("live.webm", {.muxer = "webm", .encoder = "libvpx-vp9", .options = {{"live", 1}}}, greys(20)), 20,
                true);
  const VideoForm mpeg{.muxer = "mpeg", .encoder = "mpeg2video", .rate = 25};
  expect_frames(make("a.mpg", mpeg, greys(36)), 36, true);
  expect_frames(make("b.mpeg", {.muxer = "mpeg", .encoder = "mpeg1video", .rate = 25}, greys(17)), 17, true);
  expect_frames(make("raw.m2v", {.muxer = "mpeg2video", .encoder = "mpeg2video", .rate = 25}, greys(9)), 9, true);
  expect_frames(make("a.ts", {.muxer = "mpegts", .encoder = "mpeg2video", .rate = 25}, greys(30)), 30, true);
}

// Of VP8 some frames are only there to be predicted from: one bit of their first byte says so.
TEST_F(MediaVideos, FramesOfVp8ThatAreNeverShownAreNotCounted) {
  const std::string whole = video_file({"ivf", "libvpx"}, greys(12));
  std::vector<size_t> frames;  // where each frame's bytes begin
  for (size_t at = 32; at + 12 <= whole.size();) {
    uint32_t size = 0;
    std::memcpy(&size, whole.data() + at, sizeof size);
    frames.push_back(at + 12), at += 12 + size;
  }
  ASSERT_EQ(frames.size(), 12u);
  for (const std::vector<size_t>& hidden : {std::vector<size_t>{}, {5}, {3, 7, 8}}) {
    std::string bytes = whole;
    for (const size_t frame : hidden) bytes[frames[frame]] = static_cast<char>(bytes[frames[frame]] & ~0x10);
    const Path file = write("a.ivf", bytes);
    EXPECT_EQ(probe(file).frames, static_cast<int64_t>(12 - hidden.size()));
    EXPECT_EQ(decode_clip(file, {}).count, static_cast<int>(12 - hidden.size()));
  }
}

// The frame that is lost may have been nearer than the last whole one.
TEST_F(MediaVideos, TheLastFrameBeforeDamageStandsForHalfItsTime) {
  const std::string whole = video_file({"ivf", "libvpx"}, greys(20, AV_PIX_FMT_YUV420P, 64));
  const Path file = write("cut.ivf", whole.substr(0, whole.size() * 4 / 5));
  const auto gives = [&](int frames, double fps) {
    try {
      return decode_clip(file, {.frames = frames, .fps = fps}).count == frames;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      return false;
    }
  };
  int there = 0;
  while (gives(there + 1, 0)) ++there;
  ASSERT_GT(there, 3);
  ASSERT_LT(there, 19);
  EXPECT_TRUE(gives(4 * there - 1, 64)) << "up to half a frame behind the last";
  EXPECT_FALSE(gives(4 * there, 64));
}

TEST_F(MediaVideos, RarerContainersAreReadByTheirEndings) {
  for (const auto& [name, muxer] : {std::pair("a.m2ts", "mpegts"), {"a.mts", "mpegts"}, {"a.vob", "mpeg"}}) {
    const Path file = make(name, {.muxer = muxer, .encoder = "mpeg2video", .rate = 25}, greys(9));
    EXPECT_TRUE(is_clip(file)) << name;
    EXPECT_EQ(decode_clip(file, {}).count, 9) << name;
  }
}

TEST_F(MediaVideos, Mp4IsCountedByItsIndexAndItsEdits) {
  expect_frames(make("a.mp4", {"mp4", "mpeg4"}, greys(20)), 20, false);
  expect_frames(make("a.mov", {"mov", "mpeg4"}, greys(1)), 1, false);
  VideoForm pieces{"mp4", "mpeg4"};
  pieces.options = {{"movflags", 2 | 4 | 8}};  // an index in pieces, none in front
  expect_frames(make("pieces.mp4", pieces, greys(20)), 20, true);
  // An edit list that begins a second in, and one that ends before the end.
  write_mp4(folder_ / "whole.mp4", scene(32, 32, 32, 16));
  const std::string whole = read(folder_ / "whole.mp4");
  const size_t edit = whole.find("elst");
  ASSERT_NE(edit, std::string::npos);
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(whole[at + i]);
    return value;
  };
  const uint32_t lasts = number(edit + 12), begins = number(edit + 16);  // in ticks of the movie, of the track
  const auto edited = [&](const std::string& name, uint32_t duration, uint32_t begin) {
    std::string bytes = whole;
    for (size_t i = 0; i < 4; ++i) {
      bytes[edit + 12 + i] = static_cast<char>(duration >> (24 - 8 * i));
      bytes[edit + 16 + i] = static_cast<char>(begin >> (24 - 8 * i));
    }
    return write(name, bytes);
  };
  expect_frames(edited("same.mp4", lasts, begins), 32, false);
  const VideoInfo half = probe(edited("half.mp4", lasts / 2, begins));
  EXPECT_NEAR(static_cast<double>(half.frames), 16, 1);
  EXPECT_EQ(decode_clip(folder_ / "half.mp4", {}).count, half.frames);
}

TEST_F(MediaVideos, AVideoIsInABucketThatItFills) {
  make("long.mkv", {"matroska", "ffv1"}, greys(48));
  VideoForm late{"matroska", "ffv1"};
  late.first = 40;
  make("short.mkv", late, greys(36)), make("one.mkv", {"matroska", "ffv1"}, greys(1));
  const auto all = items({"long.mkv", "short.mkv", "one.mkv"});
  const auto planned = [&](const ClipRules& rules, Problems& problems) {
    std::string text;
    for (const Clip& clip : plan_clips(all, Probes(), rules, problems).clips)
      text += all[static_cast<size_t>(clip.item)].path.stem().string() + ":" +
              std::to_string(rules.buckets[static_cast<size_t>(clip.bucket)].frames) + "@" +
              std::to_string(clip.start) + " ";
    return text;
  };
  Problems problems(/*strict=*/true);
  EXPECT_EQ(planned({.buckets = {{48, 32, 32}, {32, 32, 32}}, .fps = 16}, problems), "long:48@0 short:32@0 ");
  ASSERT_EQ(problems.left_out().size(), 1u) << "a video of one frame is no picture";
  EXPECT_NE(
      problems.left_out_text().find("one.mkv: found 1 frames at the rate of training, the shortest bucket needs 32"),
      std::string::npos);
  Problems chunks(/*strict=*/true);
  EXPECT_EQ(planned({.buckets = {{16, 32, 32}}, .fps = 16, .mode = ClipMode::chunks}, chunks),
            "long:16@0 long:16@16 long:16@32 short:16@0 short:16@16 ");
  Problems mixed(/*strict=*/true);
  EXPECT_EQ(planned({.buckets = {{32, 32, 32}, {1, 32, 32}}, .fps = 16}, mixed), "long:32@0 short:32@0 ");
  EXPECT_EQ(mixed.left_out().size(), 1u);
  Problems none(/*strict=*/false);
  EXPECT_EQ(planned({.buckets = {{64, 32, 32}}, .fps = 16}, none), "");
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.left_out().size(), 3u);
  EXPECT_NE(none.whole_text().find("3 clips are too short and left out"), std::string::npos);
  EXPECT_EQ(none.whole_text().find("cut short"), std::string::npos);
}

TEST_F(MediaVideos, ProbesRememberWhatWasCountedAndSeen) {
  make("a.mkv", {"matroska", "ffv1"}, stills(5, AV_PIX_FMT_BGRA, [](int x, int) {
         return Rgba{0, 0, 255, x > 20 ? 255 : 0};
       }));
  write_mp4(folder_ / "b.mp4", scene(8, 32, 32, 8));
  const Path file = folder_ / "cache/probes.jsonl";
  const std::vector<Path> paths = {folder_ / "a.mkv", folder_ / "b.mp4"};
  EXPECT_EQ(update_probes(file, paths).files, 1) << "one of them has an index";
  EXPECT_EQ(update_probes(file, paths).files, 0);
  const VideoInfo info = Probes(file).info(paths[0]);
  EXPECT_EQ(info.frames, 5);
  EXPECT_EQ(info.traits.names(), probe(paths[0]).traits.names());
  EXPECT_TRUE(info.traits.has(Trait::transparent));
  // Lines of an earlier version, which counted otherwise, are looked into again.
  std::string text = read(file);
  for (size_t at; (at = text.find("\"traits\"")) != std::string::npos;) text.replace(at, 8, "\"tracks\"");
  std::ofstream(file) << text;
  EXPECT_FALSE(Probes(file).knows(paths[0]));
  EXPECT_EQ(update_probes(file, paths).files, 1);
}

TEST_F(MediaVideos, ShapesThatNoVideoHasAreRefusedByTheirNumbers) {
  VideoForm form{"mov", "qtrle"};
  form.set = [](AVCodecContext& codec) { codec.sample_aspect_ratio = {2, 1}; };
  const std::string bytes = video_file(form, greys(1, AV_PIX_FMT_RGB24, 16));
  const size_t aspect = bytes.find("pasp");
  ASSERT_NE(aspect, std::string::npos);
  const auto with_aspect = [&](const std::string& name, uint32_t x, uint32_t y) {
    std::string changed = bytes;
    for (size_t i = 0; i < 4; ++i) {
      changed[aspect + 4 + i] = static_cast<char>(x >> (24 - 8 * i));
      changed[aspect + 8 + i] = static_cast<char>(y >> (24 - 8 * i));
    }
    return write(name, changed);
  };
  EXPECT_EQ(probe(with_aspect("wide.mov", 2, 1)).width, 32);
  expect_error(Exit::input, {"thin.mov", "times as wide as high", "of 16 in a row"},
               [&] { probe(with_aspect("thin.mov", 1, 30000)); });
  const Path long_clip = with_aspect("long.mov", 30000, 1);
  EXPECT_EQ(probe(long_clip).width, 480000);
  expect_error(Exit::input, {"480000 x 16 pixels would be 15360000 x 512 to cover 512 x 512"},
               [&] { decode_clip(long_clip, {.frames = 1, .height = 512, .width = 512}); });
}

TEST_F(MediaVideos, EveryMatrixIsShownAsTheProgramShowsIt) {
  write_mp4(folder_ / "a.mp4", [] {
    Frames frames{.count = 2, .height = kHeight, .width = kWidth, .fps = 8, .rgb = {}};
    for (int i = 0; i < 2; ++i)
      for (int y = 0; y < kHeight; ++y)
        for (int x = 0; x < kWidth; ++x)
          for (size_t c = 0; c < 3; ++c) frames.rgb.push_back(static_cast<uint8_t>(here(x, y)[c]));
    return frames;
  }());
  const std::string bytes = read(folder_ / "a.mp4");
  const size_t matrix = bytes.find("tkhd") + 44;  // nine numbers
  struct Case {
    int a, b, c, d;
    const char* shown;
    bool was_read_so;
  };
  // as ffmpeg -i FILE -frames:v 1 shows them; turns without mirrors are those that were read before
  const Case cases[] = {{1, 0, 0, 1, "RGBW", true},  {0, 1, -1, 0, "BRWG", true},  {-1, 0, 0, -1, "WBGR", true},
                        {0, -1, 1, 0, "GWRB", true}, {-1, 0, 0, 1, "GRWB", false}, {1, 0, 0, -1, "BWRG", false},
                        {0, 1, 1, 0, "RBGW", false}, {0, -1, -1, 0, "WGBR", false}};
  for (const Case& one : cases) {
    std::string turned = bytes;
    const auto put = [&](size_t place, int value) {
      for (size_t i = 0; i < 4; ++i)
        turned[matrix + 4 * place + i] = static_cast<char>(static_cast<uint32_t>(value * 65536) >> (24 - 8 * i));
    };
    put(0, one.a), put(1, one.b), put(3, one.c), put(4, one.d);
    const Path file = write("turned.mp4", turned);
    const VideoInfo info = probe(file);
    const Frames clip = decode_clip(file, {});
    EXPECT_EQ(colours_of(clip), one.shown);
    EXPECT_EQ(std::pair(info.width, info.height), std::pair(clip.width, clip.height)) << one.shown;
    EXPECT_EQ(info.traits.has(Trait::turned), !one.was_read_so) << one.shown;
  }
}

TEST_F(MediaVideos, AMessageInTheStreamTurnsItToo) {
  if (!avcodec_find_encoder_by_name("libx264")) GTEST_SKIP() << "needs x264";
  const std::pair<const char*, const char*> cases[] = {
      {"h264_metadata=display_orientation=insert:rotate=90", "GWRB"},
      {"h264_metadata=display_orientation=insert:rotate=180", "WBGR"},
      {"h264_metadata=display_orientation=insert:flip=horizontal", "GRWB"},
      {"h264_metadata=display_orientation=insert:flip=vertical", "BWRG"}};
  for (const auto& [filter, shown] : cases)
    for (const char* muxer : {"mp4", "matroska", "h264"}) {
      VideoForm form{muxer, "libx264"};
      form.filter = filter;
      const Path file = make("a.bin", form, stills(3, AV_PIX_FMT_YUV444P));
      EXPECT_EQ(colours_of(decode_clip(file, {.frames = 1})), shown) << filter << " " << muxer;
      EXPECT_TRUE(probe(file).traits.has(Trait::turned)) << filter << " " << muxer;
    }
}

TEST_F(MediaVideos, RgbIsExactAtEveryDepth) {
  const Paint paint = [](int x, int y) { return Rgba{x * 4, y * 8, 255 - x * 3, 255}; };
  struct Case {
    const char* encoder;
    AVPixelFormat format;
    bool read_so;
  };
  for (const Case& one : {Case{"ffv1", AV_PIX_FMT_0RGB32, false},
                          {"ffv1", AV_PIX_FMT_GBRP9, true},
                          {"ffv1", AV_PIX_FMT_GBRP10, true},
                          {"ffv1", AV_PIX_FMT_GBRP12, true},
                          {"ffv1", AV_PIX_FMT_GBRP14, true},
                          {"ffv1", AV_PIX_FMT_GBRP16, true},
                          {"ffv1", AV_PIX_FMT_RGB48, true},
                          {"libx264rgb", AV_PIX_FMT_BGR24, true}}) {
    if (!avcodec_find_encoder_by_name(one.encoder)) continue;
    VideoForm form{"matroska", one.encoder};
    form.set = [](AVCodecContext& codec) {
      codec.colorspace = AVCOL_SPC_RGB;
      av_opt_set(codec.priv_data, "crf", "0", 0);
    };
    const Path file = make("a.mkv", form, stills(2, one.format, paint));
    const Frames clip = decode_clip(file, {});
    int most = 0;
    for (int y = 0; y < kHeight; ++y)
      for (int x = 0; x < kWidth; ++x)
        for (size_t c = 0; c < 3; ++c) most = std::max(most, std::abs(pixel(clip, 1, y, x)[c] - paint(x, y)[c]));
    EXPECT_EQ(most, 0) << av_get_pix_fmt_name(one.format);
    EXPECT_TRUE(probe(file).traits.has(Trait::rgb)) << av_get_pix_fmt_name(one.format);
    // resized, colours stay what they are: through one matrix and back by another they would not
    const Path flat = make("flat.mkv", form, stills(2, one.format, here));
    const Frames small = decode_clip(flat, {.frames = 1, .height = 16, .width = 32});
    for (const auto& [y, x] : {std::pair(3, 7), {3, 24}, {12, 7}, {12, 24}})
      for (size_t c = 0; c < 3; ++c)
        EXPECT_NEAR(pixel(small, 0, y, x)[c], here(2 * x, 2 * y)[c], 1) << av_get_pix_fmt_name(one.format);
  }
  EXPECT_TRUE(probe(make("yuv.mkv", {"matroska", "ffv1"}, stills(2, AV_PIX_FMT_YUV444P))).traits.names().empty());
}

TEST_F(MediaVideos, AnAlphaChannelIsComposedOnTheBackground) {
  const Paint paint = [](int x, int) { return x < 32 ? Rgba{0, 0, 255, 255} : Rgba{255, 0, 0, 0}; };
  struct Case {
    const char *muxer, *encoder;
    AVPixelFormat format;
  };
  for (const Case& one : {Case{"mov", "qtrle", AV_PIX_FMT_ARGB},
                          {"matroska", "ffv1", AV_PIX_FMT_RGB32},
                          {"matroska", "ffv1", AV_PIX_FMT_YUVA420P},
                          {"matroska", "ffv1", AV_PIX_FMT_GBRAP12},
                          {"mov", "prores_ks", AV_PIX_FMT_YUVA444P10},
                          {"webm", "libvpx", AV_PIX_FMT_YUVA420P},
                          {"webm", "libvpx-vp9", AV_PIX_FMT_YUVA420P},
                          {"mov", "png", AV_PIX_FMT_RGBA}}) {
    const std::string name = std::string(one.encoder) + " " + av_get_pix_fmt_name(one.format);
    if (!avcodec_find_encoder_by_name(one.encoder)) continue;
    VideoForm form{one.muxer, one.encoder};
    form.set = [](AVCodecContext& codec) { av_opt_set(codec.priv_data, "auto-alt-ref", "0", 0); };
    const Path file = make("a.bin", form, stills(3, one.format, paint));
    EXPECT_TRUE(probe(file).traits.has(Trait::transparent)) << name;
    const Frames white = decode_clip(file, {});
    const Frames grey = decode_clip(file, {.frames = 3, .showing = {.background = {100, 110, 120}}});
    ASSERT_EQ(white.count, 3) << name;
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(pixel(white, 2, 16, 56)[c], 255, 2) << name;
      EXPECT_NEAR(pixel(white, 2, 16, 8)[c], paint(0, 0)[c], 6) << name;
      EXPECT_NEAR(pixel(grey, 2, 16, 56)[c], 100 + 10 * static_cast<int>(c), 2) << name;
    }
    const Path opaque = make("b.bin", form, stills(3, one.format));
    EXPECT_FALSE(probe(opaque).traits.has(Trait::transparent)) << name;
  }
}

// A key frame is stored before frames that are shown before it.
TEST_F(MediaVideos, APartOfAVideoWithFramesOutOfOrderIsThatPartOfTheWhole) {
  for (const char* muxer : {"mp4", "matroska"}) {
    const auto set = [](AVCodecContext& codec) {
      codec.max_b_frames = 2, codec.gop_size = 12;
      codec.flags |= AV_CODEC_FLAG_QSCALE, codec.global_quality = FF_QP2LAMBDA;
    };
    const Path file = make(std::string("b.") + muxer, {.muxer = muxer, .encoder = "mpeg4", .set = set}, greys(56));
    const Frames whole = decode_clip(file, {});
    ASSERT_EQ(whole.count, 56) << muxer;
    for (int k = 17; k < 55; ++k) {
      const Frames part = decode_clip(file, {.frames = 2, .start = k / 16.0});
      EXPECT_TRUE(std::equal(part.rgb.begin(), part.rgb.end(), whole.frame(k))) << muxer << " from frame " << k;
    }
  }
}

TEST_F(MediaVideos, TheMatrixAndTheRangeAreThoseThatTheFileNames) {
  constexpr int kY = 120, kU = 100, kV = 170;
  struct Form {
    AVColorSpace space;
    double red, blue;  // of luma
    bool full;
  };
  const Form forms[] = {{AVCOL_SPC_BT709, 0.2126, 0.0722, false},      {AVCOL_SPC_BT470BG, 0.299, 0.114, false},
                        {AVCOL_SPC_UNSPECIFIED, 0.299, 0.114, false},  {AVCOL_SPC_BT709, 0.2126, 0.0722, true},
                        {AVCOL_SPC_BT2020_NCL, 0.2627, 0.0593, false}, {AVCOL_SPC_SMPTE170M, 0.299, 0.114, true}};
  for (const Form& form : forms) {
    FramePtr frame = new_frame(AV_PIX_FMT_YUV444P, kWidth, kHeight);
    for (int p = 0; p < 3; ++p)
      std::fill_n(frame->data[p], static_cast<size_t>(frame->linesize[p]) * kHeight, uint8_t((int[]){kY, kU, kV}[p]));
    frame->colorspace = form.space, frame->color_range = form.full ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
    const auto set = [&](AVCodecContext& codec) {
      codec.colorspace = form.space, codec.color_range = form.full ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
    };
    std::vector<FramePtr> frames;
    frames.push_back(std::move(frame));
    const Path file = make("m.mkv", {.muxer = "matroska", .encoder = "ffv1", .set = set}, frames);
    const double y = form.full ? kY : (kY - 16) * 255 / 219.0, scale = form.full ? 1 : 255 / 224.0;
    const double u = (kU - 128) * scale, v = (kV - 128) * scale;
    const double r = y + 2 * (1 - form.red) * v, b = y + 2 * (1 - form.blue) * u;
    const double g = (y - form.red * r - form.blue * b) / (1 - form.red - form.blue);
    const Rgba shown = pixel(decode_clip(file, {}), 0, kHeight / 2, kWidth / 2);
    const double expected[] = {r, g, b};
    for (size_t c = 0; c < 3; ++c)
      EXPECT_NEAR(shown[c], expected[c], 2)
          << "matrix " << form.space << (form.full ? ", full" : "") << ", colour " << c;
  }
}

TEST_F(MediaVideos, ASoundTrackThatBeginsLaterIsHeardLater) {
  constexpr int kRate = 16000;
  for (const double late : {0.5, 0.0})
    for (const int64_t first : {0, 48}) {  // the clock of the file begins at 0, or at three seconds
      const std::vector<FramePtr> frames = greys(40);
      const CodecPtr picture = new_encoder(avcodec_find_encoder_by_name("ffv1"), "ffv1", 32, 32, AV_PIX_FMT_YUV420P);
      picture->time_base = {1, 16}, picture->framerate = {16, 1};
      const CodecPtr sound = new_encoder(avcodec_find_encoder_by_name("pcm_s16le"), "pcm_s16le", 0, 0, AV_PIX_FMT_NONE);
      sound->sample_fmt = AV_SAMPLE_FMT_S16, sound->sample_rate = kRate, sound->time_base = {1, kRate};
      av_channel_layout_default(&sound->ch_layout, 1);
      require(avcodec_open2(picture.get(), picture->codec, nullptr), "opening the encoder");
      require(avcodec_open2(sound.get(), sound->codec, nullptr), "opening the encoder");
      Muxer muxer("matroska", *picture, {}, sound.get());
      for (size_t i = 0; i < frames.size(); ++i) {
        frames[i]->pts = first + static_cast<int64_t>(i);
        require(avcodec_send_frame(picture.get(), frames[i].get()), "encoding");
        drain(*picture, [&](AVPacket& packet) { muxer.add(packet); });
      }
      avcodec_send_frame(picture.get(), nullptr);
      drain(*picture, [&](AVPacket& packet) { muxer.add(packet); });
      const auto click = static_cast<int64_t>((1.2 - late) * kRate);  // at 1.2 s of the video
      for (int64_t at = 0; at < 2 * kRate; at += kRate / 10) {
        const FramePtr frame(av_frame_alloc());
        frame->format = sound->sample_fmt, frame->nb_samples = kRate / 10, frame->sample_rate = kRate;
        frame->pts = first * kRate / 16 + static_cast<int64_t>(late * kRate) + at;
        av_channel_layout_copy(&frame->ch_layout, &sound->ch_layout);
        require(av_frame_get_buffer(frame.get(), 0), "a frame of sound");
        auto* samples = reinterpret_cast<int16_t*>(frame->data[0]);
        for (int64_t i = 0; i < kRate / 10; ++i) samples[i] = at + i == click ? 30000 : 3000;
        require(avcodec_send_frame(sound.get(), frame.get()), "encoding");
        drain(*sound, [&](AVPacket& packet) { muxer.add_sound(packet); });
      }
      const Sound heard = decode_sound(write("late.mkv", muxer.finish()), {.rate = kRate});
      const auto loudest = std::ranges::max_element(heard.samples) - heard.samples.begin();
      EXPECT_NEAR(static_cast<double>(loudest) / kRate, 1.2, 0.002) << late << " s late, from " << first;
      const auto silent = static_cast<size_t>(late * kRate);
      EXPECT_TRUE(std::all_of(heard.samples.begin(), heard.samples.begin() + static_cast<ptrdiff_t>(silent),
                              [](float x) { return x == 0; }));
      ASSERT_GT(heard.samples.size(), silent + kRate);
      EXPECT_NEAR(heard.samples[silent + 32], 3000 / 32768.0, 0.002) << "and then it begins";
      EXPECT_NEAR(heard.seconds(), 2 + late, 0.01);
    }
}

TEST_F(MediaVideos, ColoursThatNothingHereCanShowAreRefused) {
  for (const AVColorSpace space : {AVCOL_SPC_YCGCO, AVCOL_SPC_ICTCP, AVCOL_SPC_SMPTE2085}) {
    VideoForm form{"matroska", "ffv1"};
    form.set = [&](AVCodecContext& codec) { codec.colorspace = space; };
    const Path file = make("a.mkv", form, stills(2, AV_PIX_FMT_YUV444P));
    expect_error(Exit::input, {"a.mkv", av_color_space_name(space), "BT.709"}, [&] { probe(file); });
    expect_error(Exit::input, {"a.mkv", av_color_space_name(space)}, [&] { decode_clip(file, {}); });
  }
  for (const AVColorSpace space : {AVCOL_SPC_BT709, AVCOL_SPC_SMPTE170M, AVCOL_SPC_BT2020_NCL, AVCOL_SPC_SMPTE240M}) {
    VideoForm form{"matroska", "ffv1"};
    form.set = [&](AVCodecContext& codec) { codec.colorspace = space; };
    EXPECT_TRUE(probe(make("a.mkv", form, stills(2, AV_PIX_FMT_YUV444P))).traits.names().empty());
  }
}

}  // namespace tessera::data
