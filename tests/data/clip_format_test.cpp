#include "tessera/data/clip_format.h"

#include <malloc.h>

#include <set>

#include "data/scene.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/palette.h"
#include "tessera/data/video.h"

namespace tessera::data {
namespace {

class ClipFormats : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "built without FFmpeg";
  }
};

TEST(ClipFormat, IsKnownByNameAndByEnding) {
  EXPECT_EQ(parse_clip_format("gif"), ClipFormat::gif);
  EXPECT_EQ(clip_format_of("a/b.mp4"), ClipFormat::mp4);
  EXPECT_EQ(clip_format_of("a/b.gif"), ClipFormat::gif);
  EXPECT_EQ(clip_format_of("a/b.png"), ClipFormat::png);
  EXPECT_EQ(clip_format_of("a/b"), std::nullopt);
  expect_error(Exit::usage, {"'fgi'", "gif"}, [] { parse_clip_format("fgi"); });
}

TEST_F(ClipFormats, AGifComesBackWithItsFramesRateAndColours) {
  const Frames clip = scene(6, 48, 64, 10);
  write_clip(folder_ / "a.gif", clip, ClipFormat::gif);
  const Frames back = decode_clip(folder_ / "a.gif", {});
  ASSERT_EQ(back.count, 6);
  EXPECT_EQ(back.height, 48);
  EXPECT_EQ(back.width, 64);
  EXPECT_NEAR(back.fps, 10, 0.01);
  EXPECT_GT(psnr(clip, back), 30);
}

TEST_F(ClipFormats, AGifPlaysInALoopAndIsTheSameEachTime) {
  const Frames clip = scene(3, 16, 16, 8);
  const std::vector<uint8_t> gif = encode_gif(clip);
  const std::string bytes(gif.begin(), gif.end());
  EXPECT_TRUE(bytes.starts_with("GIF89a"));
  EXPECT_NE(bytes.find("NETSCAPE2.0"), std::string::npos);
  EXPECT_EQ(gif, encode_gif(clip));
}

TEST_F(ClipFormats, AnMp4HasTheSameBytesWhateverWasInMemoryBefore) {
  for (const int seed : {2, 3, 7}) {
    Frames clip{4, 32, 48, 8.0, {}};
    for (int t = 0; t < clip.count; ++t)
      for (int y = 0; y < clip.height; ++y)
        for (int x = 0; x < clip.width; ++x)
          for (int c = 0; c < 3; ++c)
            clip.rgb.push_back(static_cast<uint8_t>(100 + (x * 7 + y * 3 + t * 11 * seed) % 50 + c * 9 + t * 10));
    std::set<std::string> files;
    for (int filled = 31; filled < 250; filled += 31) {
      mallopt(M_PERTURB, filled);  // what malloc() gives begins with these bytes
      write_clip(folder_ / "a.mp4", clip, ClipFormat::mp4);
      mallopt(M_PERTURB, 0);
      files.insert(checkpoint::read_text(folder_ / "a.mp4"));
    }
    EXPECT_EQ(files.size(), 1U) << seed;
  }
}

TEST_F(ClipFormats, FramesAreNumberedPicturesWithoutLoss) {
  const Frames clip = scene(3, 16, 24, 8);
  write_clip(folder_ / "clip", clip, ClipFormat::frames);
  for (int i = 0; i < 3; ++i) {
    const Frames back = decode_clip(folder_ / ("clip/frame-000" + std::to_string(i) + ".png"), {});
    EXPECT_TRUE(std::equal(back.rgb.begin(), back.rgb.end(), clip.frame(i))) << i;
  }
}

TEST_F(ClipFormats, APictureIsAFileAndAClipOfMoreFramesIsNone) {
  const Frames picture = scene(1, 16, 24, 8);
  write_clip(folder_ / "a.png", picture, ClipFormat::png);
  EXPECT_EQ(decode_clip(folder_ / "a.png", {}).rgb, picture.rgb);
  expect_error(Exit::usage, {"b.png", "holds one frame", "has 3", "--format frames"},
               [&] { write_clip(folder_ / "b.png", scene(3, 16, 24, 8), ClipFormat::png); });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "b.png"));
}

TEST_F(ClipFormats, AShorterClipLeavesNoFramesOfTheOneBefore) {
  write_clip(folder_ / "clip", scene(5, 16, 16, 8), ClipFormat::frames);
  write_clip(folder_ / "clip", scene(2, 16, 16, 8), ClipFormat::frames);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "clip/frame-0001.png"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "clip/frame-0002.png"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "clip/frame-0004.png"));
}

TEST(Palettes, AFewColoursAreKeptExactly) {
  Frames clip;
  clip.count = 1, clip.height = 1, clip.width = 4, clip.fps = 1;
  clip.rgb = {255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9};
  const Palette palette = choose_palette(clip);
  ASSERT_EQ(palette.colours().size(), 4u);
  const auto indices = palette.map(clip, 0);
  for (size_t i = 0; i < 4; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(palette.colours()[indices[i]][c], clip.rgb[3 * i + c]) << i;
}

TEST(Palettes, AFlatPictureTakesOneColour) {
  Frames clip;
  clip.count = 2, clip.height = 8, clip.width = 8, clip.fps = 1;
  clip.rgb.assign(2 * 8 * 8 * 3, 77);
  EXPECT_EQ(choose_palette(clip).colours().size(), 1u);
}

TEST(Thumbnail, AveragesSquaresAndPicksFramesEvenly) {
  Frames clip;
  clip.count = 5, clip.height = 4, clip.width = 8, clip.fps = 10;
  clip.rgb.resize(5 * 4 * 8 * 3);
  for (int f = 0; f < 5; ++f)
    for (size_t i = 0; i < clip.frame_bytes(); ++i)
      clip.frame(f)[i] = static_cast<uint8_t>(40 * f + (i % 6 < 3 ? 0 : 8));
  const Frames small = thumbnail(clip, 4, 3);
  EXPECT_EQ(small.count, 3);
  EXPECT_EQ(small.height, 2);
  EXPECT_EQ(small.width, 4);
  EXPECT_DOUBLE_EQ(small.fps, 6);
  EXPECT_EQ(small.frame(0)[0], 4);  // the mean of 0 and 8
  EXPECT_EQ(small.frame(1)[0], 84);
  EXPECT_EQ(small.frame(2)[5], 164);
}

TEST(Thumbnail, ASmallClipStaysAsItIs) {
  const Frames clip = scene(2, 8, 8, 4);
  EXPECT_EQ(thumbnail(clip, 320, 33).rgb, clip.rgb);
}

}  // namespace
}  // namespace tessera::data
