#include "tessera/data/video.h"

#include "data/scene.h"

namespace tessera::data {

class Video : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "built without FFmpeg";
  }
};

TEST(CoreBuild, WithoutFfmpegEveryFunctionSaysSo) {
  if (has_video()) GTEST_SKIP() << "built with FFmpeg";
  expect_error(Exit::input, {"a.mp4", "without FFmpeg", "TESSERA_VIDEO"}, [] { decode_clip("a.mp4", {.frames = 4}); });
  expect_error(Exit::input, {"without FFmpeg"}, [] { probe("a.mp4"); });
  expect_error(Exit::input, {"without FFmpeg"}, [] { write_mp4("a.mp4", scene(1, 2, 2, 1)); });
  expect_error(Exit::input, {"without FFmpeg"}, [] { write_png(scene(1, 2, 2, 1), 0); });
  expect_error(Exit::input, {"without FFmpeg"}, [] { write_jpeg(scene(1, 2, 2, 1), 0); });
}

/// Which source frame each frame of `clip` is, by brightness (scene() brightens by 4 a frame).
std::vector<int> sources(const Frames& clip, double first_mean) {
  std::vector<int> indices;
  for (int i = 0; i < clip.count; ++i)
    indices.push_back(static_cast<int>(std::lround((mean(clip, i) - first_mean) / 4)));
  return indices;
}

TEST_F(Video, WhatIsWrittenComesBackNearlyUnchanged) {
  const Frames clip = scene(16, 64, 96, 16);
  write_mp4(folder_ / "a.mp4", clip);
  const Frames back = decode_clip(folder_ / "a.mp4", {});
  EXPECT_EQ(back.count, 16);
  EXPECT_EQ(back.height, 64);
  EXPECT_EQ(back.width, 96);
  EXPECT_NEAR(back.fps, 16, 1e-9);
  EXPECT_GT(psnr(clip, back), 40);
}

TEST_F(Video, ProbeTellsSizeRateAndLength) {
  write_mp4(folder_ / "a.mp4", scene(30, 32, 48, 30000.0 / 1001));
  const VideoInfo info = probe(folder_ / "a.mp4");
  EXPECT_EQ(info.width, 48);
  EXPECT_EQ(info.height, 32);
  EXPECT_EQ(info.frames, 30);
  EXPECT_NEAR(info.fps, 29.97, 0.001);
  EXPECT_NEAR(info.duration, 30 * 1001 / 30000.0, 1e-3);
}

TEST_F(Video, AnotherRateTakesTheNearestSourceFrames) {
  const Frames clip = scene(25, 16, 16, 24);
  write_mp4(folder_ / "a.mp4", clip);
  const auto at = [&](const ClipSpec& spec) { return sources(decode_clip(folder_ / "a.mp4", spec), mean(clip, 0)); };
  EXPECT_EQ(at({.frames = 6, .fps = 16}), (std::vector<int>{0, 1, 3, 4, 6, 7}));  // 1.5 is as near to 1 as to 2
  EXPECT_EQ(at({.frames = 4, .fps = 8}), (std::vector<int>{0, 3, 6, 9}));
  EXPECT_EQ(at({.frames = 5, .fps = 48}), (std::vector<int>{0, 0, 1, 1, 2}));
  EXPECT_EQ(at({.frames = 3, .start = 10 / 24.0}), (std::vector<int>{10, 11, 12}));
  EXPECT_EQ(at({.frames = 3, .fps = 12, .start = 10 / 24.0}), (std::vector<int>{10, 12, 14}));
}

TEST_F(Video, AClipLastsAsLongAsItsFramesAreShown) {
  write_mp4(folder_ / "a.mp4", scene(24, 16, 16, 24));
  EXPECT_EQ(decode_clip(folder_ / "a.mp4", {.frames = 0, .fps = 16}).count, 16);
  EXPECT_EQ(decode_clip(folder_ / "a.mp4", {.frames = 0, .fps = 48}).count, 48);
  EXPECT_EQ(decode_clip(folder_ / "a.mp4", {.frames = 24}).count, 24);
}

TEST_F(Video, ResizeCoversAndCropsTheCentre) {
  Frames wide{.count = 1, .height = 32, .width = 96, .fps = 8, .rgb = std::vector<uint8_t>(32 * 96 * 3, 20)};
  for (int y = 0; y < 32; ++y)
    for (int x = 32; x < 64; ++x)
      for (int c = 0; c < 3; ++c) wide.frame(0)[(y * 96 + x) * 3 + c] = 220;  // the middle third is bright
  write_mp4(folder_ / "wide.mp4", wide);
  const Frames square = decode_clip(folder_ / "wide.mp4", {.frames = 1, .height = 16, .width = 16});
  EXPECT_EQ(square.rgb.size(), 16u * 16 * 3);
  for (const int x : {2, 8, 13}) EXPECT_NEAR(square.frame(0)[(8 * 16 + x) * 3], 220, 12);
}

TEST_F(Video, AnImageIsAClipOfOneFrame) {
  const Frames picture = scene(2, 30, 42, 25);
  const auto png = write_png(picture, 1);
  const auto jpeg = write_jpeg(picture, 1);
  write("a.png", {png.begin(), png.end()});
  write("a.jpg", {jpeg.begin(), jpeg.end()});
  Frames second{.count = 1, .height = 30, .width = 42, .fps = 25, .rgb = {}};
  second.rgb.assign(picture.frame(1), picture.frame(1) + picture.frame_bytes());
  EXPECT_EQ(decode_clip(folder_ / "a.png", {.frames = 1}).rgb, second.rgb) << "png is lossless";
  EXPECT_GT(psnr(decode_clip(folder_ / "a.jpg", {.frames = 1}), second), 38);
  EXPECT_EQ(probe(folder_ / "a.png").frames, 1);
  expect_error(Exit::input, {"a.png", "found 1 frames, needed 16", "data.frames"},
               [&] { decode_clip(folder_ / "a.png", {.frames = 16}); });
}

TEST_F(Video, ATurnedClipIsShownUpright) {
  Frames lying{.count = 1, .height = 32, .width = 48, .fps = 8, .rgb = std::vector<uint8_t>(32 * 48 * 3, 20)};
  for (int y = 0; y < 16; ++y)
    for (int x = 0; x < 24; ++x)
      for (int c = 0; c < 3; ++c) lying.frame(0)[(y * 48 + x) * 3 + c] = 220;  // the upper left quarter is bright
  write_mp4(folder_ / "lying.mp4", lying);
  const std::string bytes = read(folder_ / "lying.mp4");
  const size_t matrix = bytes.find("tkhd") + 44;      // of the track header: nine numbers, 16.16 and 2.30
  const auto bright = [&](const std::string& turn) {  // which quarter is, clockwise from the upper left
    std::string turned = bytes;
    turned.replace(matrix, 36, turn);
    const Path path = write("turned.mp4", turned);
    const Frames clip = decode_clip(path, {});
    EXPECT_EQ(probe(path).width, clip.width);
    const auto at = [&](int y, int x) { return clip.frame(0)[(y * clip.width + x) * 3] > 120; };
    const int h = clip.height, w = clip.width;
    const std::vector<bool> quarters = {at(h / 4, w / 4), at(h / 4, 3 * w / 4), at(3 * h / 4, 3 * w / 4),
                                        at(3 * h / 4, w / 4)};
    EXPECT_EQ(std::count(quarters.begin(), quarters.end(), true), 1);
    return std::pair(clip.height, std::find(quarters.begin(), quarters.end(), true) - quarters.begin());
  };
  const std::string zero(4, '\0'), one("\0\1\0\0", 4), minus("\xFF\xFF\0\0", 4), last("\x40\0\0\0", 4);
  using Found = std::pair<int, std::ptrdiff_t>;
  EXPECT_EQ(bright(one + zero + zero + zero + one + zero + zero + zero + last), Found(32, 0));
  EXPECT_EQ(bright(zero + one + zero + minus + zero + zero + zero + zero + last),
            Found(48, 1));  // a phone held upright
  EXPECT_EQ(bright(minus + zero + zero + zero + minus + zero + zero + zero + last), Found(32, 2));
  EXPECT_EQ(bright(zero + minus + zero + one + zero + zero + zero + zero + last), Found(48, 3));
}

TEST_F(Video, AnOddRowAndColumnAreLeftOut) {
  write_mp4(folder_ / "a.mp4", scene(2, 17, 19, 8));
  const VideoInfo info = probe(folder_ / "a.mp4");
  EXPECT_EQ(info.height, 16);
  EXPECT_EQ(info.width, 18);
}

TEST_F(Video, AMissingFileIsNamed) {
  expect_error(Exit::input, {"nowhere.mp4", "no such file"},
               [&] { decode_clip(folder_ / "nowhere.mp4", {.frames = 4}); });
}

TEST_F(Video, AFileThatIsNoVideoIsNamed) {
  const Path text = write("text.mp4", "this is no video at all, whatever its name says");
  expect_error(Exit::input, {"text.mp4", "not a video"}, [&] { decode_clip(text, {.frames = 4}); });
  const Path empty = write("empty.mp4", "");
  expect_error(Exit::input, {"empty.mp4", "cut short"}, [&] { probe(empty); });
}

TEST_F(Video, SoundAloneIsNoVideo) {
  std::string wav("RIFF\x24\x08\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1F\0\0\x80\x3E\0\0\2\0\x10\0data\0\x08\0\0", 44);
  expect_error(Exit::input, {"sound.mp4", "no video stream"},
               [&] { probe(write("sound.mp4", wav + std::string(2048, '\0'))); });
}

TEST_F(Video, TooFewFramesAreCountedInTheMessage) {
  write_mp4(folder_ / "short.mp4", scene(9, 16, 16, 24));
  expect_error(Exit::input, {"short.mp4", "found 9 frames, needed 16 at 24 fps"},
               [&] { decode_clip(folder_ / "short.mp4", {.frames = 16}); });
  expect_error(Exit::input, {"found 6 frames, needed 16 at 16 fps; the file gave 9 at 24 fps", "lower data.frames"},
               [&] { decode_clip(folder_ / "short.mp4", {.frames = 16, .fps = 16}); });
  expect_error(Exit::input, {"found 0 frames"},
               [&] { decode_clip(folder_ / "short.mp4", {.frames = 1, .start = 10}); });
}

TEST_F(Video, ATruncatedFileIsRefusedWhereverItWasCut) {
  write_mp4(folder_ / "whole.mp4", scene(16, 64, 96, 16, 8));
  const std::string whole = read(folder_ / "whole.mp4");
  for (const double part : {0.01, 0.3, 0.6, 0.8, 0.95, 0.99}) {
    const Path cut = write("cut.mp4", whole.substr(0, static_cast<size_t>(part * static_cast<double>(whole.size()))));
    expect_error(Exit::input, {"cut.mp4", "cut short"}, [&] { decode_clip(cut, {.frames = 16}); });
  }
}

TEST_F(Video, DamagedBytesAreRefusedOrDecodedButNeverCrash) {
  write_mp4(folder_ / "whole.mp4", scene(8, 32, 48, 16, 8));
  const std::string whole = read(folder_ / "whole.mp4");
  int refused = 0;
  for (size_t at = 0; at < whole.size(); at += 97) {
    std::string bad = whole;
    for (size_t i = at; i < std::min(at + 24, whole.size()); ++i) bad[i] = static_cast<char>(~bad[i]);
    try {
      EXPECT_EQ(decode_clip(write("bad.mp4", bad), {.frames = 8, .height = 32, .width = 48}).count, 8);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      ++refused;
    }
  }
  EXPECT_GT(refused, 5);
}

/// Three scenes of 3 s each, which an encoder begins with a key frame.
Frames three_scenes() {
  Frames all = scene(72, 64, 64, 24, 1);
  for (int cut = 1; cut < 3; ++cut) {
    Frames next = scene(72, 64, 64, 24, 2 - cut);
    for (size_t i = 0; i < next.rgb.size(); ++i) next.rgb[i] = static_cast<uint8_t>(i % (7 + 6 * cut) < 4 ? 250 : 10);
    all.rgb.insert(all.rgb.end(), next.rgb.begin(), next.rgb.end());
    all.count += next.count;
  }
  return all;
}

TEST_F(Video, APartFromTheMiddleIsThatPartOfTheWhole) {
  const Path path = folder_ / "a.mp4";
  write_mp4(path, three_scenes());
  const Frames whole = decode_clip(path, {});
  ASSERT_EQ(whole.count, 216);
  for (const int start : {0, 23, 25, 71, 72, 73, 100, 143, 144, 145, 200, 211}) {
    for (const double fps : {0.0, 24.0}) {
      const Frames part = decode_clip(path, {.frames = 5, .fps = fps, .start = start / 24.0});
      const uint8_t* there = whole.frame(start);
      EXPECT_TRUE(std::equal(part.rgb.begin(), part.rgb.end(), there)) << "from frame " << start << " at " << fps;
    }
  }
}

TEST_F(Video, APartFromTheMiddleIsReadFromTheKeyFrameBeforeIt) {
  const Path path = folder_ / "a.mp4";
  write_mp4(path, three_scenes());
  const Frames last = decode_clip(path, {.frames = 5, .start = 170 / 24.0});
  std::string bytes = read(path);
  const size_t media = bytes.find("mdat");
  ASSERT_NE(media, std::string::npos);
  // the middle scene is noise to an encoder and takes most of the file; the first frame, whose time others count from,
  // stays
  const size_t begin = media + (bytes.size() - media) / 4;
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), 200, '\xFF');
  const Path damaged = write("b.mp4", bytes);
  EXPECT_THROW(decode_clip(damaged, {}), UserError);
  EXPECT_EQ(decode_clip(damaged, {.frames = 5, .start = 170 / 24.0}).rgb, last.rgb)
      << "frames before the key frame are not looked at";
}

TEST(Psnr, OfKnownDifferences) {
  Frames a{.count = 1, .height = 2, .width = 2, .fps = 1, .rgb = std::vector<uint8_t>(12, 100)};
  Frames b = a;
  EXPECT_TRUE(std::isinf(psnr(a, b)));
  for (uint8_t& value : b.rgb) value = 110;
  EXPECT_NEAR(psnr(a, b), 20 * std::log10(25.5), 1e-9);
  b.height = 1, b.width = 4;
  expect_error(Exit::input, {"1x2x2", "1x1x4"}, [&] { psnr(a, b); });
}

}  // namespace tessera::data
