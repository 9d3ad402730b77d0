#include "tessera/data/footage.h"

#include "data/scene.h"
#include "tessera/data/clips.h"

namespace tessera::data {

namespace {

/// Frames by `paint(frame, y, x, channel)`.
template <class Paint>
Frames film(int count, int height, int width, const Paint& paint) {
  Frames frames{.count = count, .height = height, .width = width, .fps = 8, .rgb = {}};
  for (int i = 0; i < count; ++i)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < 3; ++c) frames.rgb.push_back(static_cast<uint8_t>(paint(i, y, x, c)));
  return frames;
}

/// A moving pattern of its own for each scene.
int pattern(int scene, int frame, int y, int x, int c) {
  const double wave = std::sin((0.2 + 0.07 * scene) * (x + frame) + 0.15 * scene * y + c + 2 * scene);
  return static_cast<int>(std::lround(90 + 35 * (scene % 3) + 50 * wave));
}

/// Scenes that begin with these frames.
Frames scenes(int count, const std::vector<int>& begins, int height = 48, int width = 64) {
  return film(count, height, width, [&](int i, int y, int x, int c) {
    const auto scene = std::upper_bound(begins.begin(), begins.end(), i) - begins.begin();
    return pattern(static_cast<int>(scene), i, y, x, c);
  });
}

using Cuts_ = std::vector<int64_t>;

}  // namespace

TEST(Footage, HardCutsAreFoundWhereTheyAre) {
  EXPECT_EQ(look_at(scenes(24, {})).cuts, Cuts_());
  EXPECT_EQ(look_at(scenes(24, {9})).cuts, Cuts_({9}));
  EXPECT_EQ(look_at(scenes(24, {1})).cuts, Cuts_({1}));
  EXPECT_EQ(look_at(scenes(24, {23})).cuts, Cuts_({23}));
  EXPECT_EQ(look_at(scenes(40, {7, 20, 31})).cuts, Cuts_({7, 20, 31}));
  EXPECT_TRUE(look_at(scenes(24, {})).empty());
}

TEST(Footage, MovementFlashesAndFadesAreNoCuts) {
  const auto none = [](const Frames& frames) { return look_at(frames).cuts.empty(); };
  EXPECT_TRUE(none(film(24, 48, 64, [](int i, int y, int x, int c) { return pattern(1, 5 * i, y, x, c); })));
  EXPECT_TRUE(none(film(24, 48, 64, [](int i, int y, int x, int c) {
    return i == 11 ? 255 : pattern(1, i, y, x, c);  // a flash
  }))) << "a flash";
  EXPECT_TRUE(none(film(24, 48, 64, [](int i, int y, int x, int c) { return pattern(1, 0, y, x, c) * i / 24; })));
  EXPECT_TRUE(none(film(24, 48, 64, [](int i, int y, int x, int c) {
    return (pattern(1, i, y, x, c) * (23 - i) + pattern(2, i, y, x, c) * i) / 23;
  }))) << "a dissolve";
  EXPECT_TRUE(none(film(24, 48, 64, [](int i, int y, int x, int c) { return pattern(i % 5, i, y, x, c); })))
      << "frames that have nothing to do with each other";
}

TEST(Footage, BlackBarsAreMeasuredByTheirShare) {
  const auto with = [](int top, int bottom, int left, int right, int black = 0) {
    return look_at(film(6, 100, 80,
                        [&](int i, int y, int x, int c) {
                          const bool bar = y < top || y >= 100 - bottom || x < left || x >= 80 - right;
                          return bar ? black : 40 + pattern(1, i, y, x, c) / 2;
                        }))
        .bars;
  };
  EXPECT_FALSE(with(0, 0, 0, 0).any());
  const Edges letterbox = with(12, 13, 0, 0);
  EXPECT_NEAR(letterbox.top, 0.12, 1e-9);
  EXPECT_NEAR(letterbox.bottom, 0.13, 1e-9);
  EXPECT_EQ(letterbox.left, 0);
  const Edges pillars = with(0, 0, 20, 20, 8);
  EXPECT_NEAR(pillars.left, 0.25, 1e-9);
  EXPECT_NEAR(pillars.right, 0.25, 1e-9);
  EXPECT_FALSE(with(1, 1, 0, 0).any()) << "below 2 %";
  EXPECT_NEAR(with(2, 0, 0, 0).top, 0.02, 1e-9);
  EXPECT_FALSE(with(12, 12, 0, 0, 60).any()) << "grey ones";
  // A bar of one frame, and a dark sky, are none.
  EXPECT_FALSE(look_at(film(6, 100, 80, [](int i, int y, int x, int c) {
                 return i == 3 && y < 20 ? 0 : 40 + pattern(1, i, y, x, c) / 2;
               })).bars.any());
  EXPECT_FALSE(look_at(film(6, 100, 80, [](int, int y, int, int) { return y; })).bars.any());
}

TEST(Footage, BlackAndStillFramesAreCounted) {
  const Footage black = look_at(film(8, 48, 64, [](int i, int, int, int) { return i % 3; }));
  EXPECT_TRUE(black.black);
  EXPECT_FALSE(black.bars.any());
  EXPECT_FALSE(look_at(film(8, 48, 64, [](int i, int, int x, int) { return i == 5 && x > 30 ? 90 : 2; })).black);
  const Footage still = look_at(film(8, 48, 64, [](int, int y, int x, int c) { return pattern(1, 0, y, x, c); }));
  EXPECT_EQ(still.repeated, 7);
  EXPECT_FALSE(still.black);
  const Footage twice = look_at(film(8, 48, 64, [](int i, int y, int x, int c) { return pattern(1, i / 2, y, x, c); }));
  EXPECT_EQ(twice.repeated, 4);
  EXPECT_EQ(look_at(film(8, 48, 64,
                         [](int i, int y, int x, int c) {
                           return x / 4 == i && y / 4 == 2 ? 250 : pattern(1, 0, y, x, c);  // something small moves
                         }))
                .repeated,
            0);
}

class FootageFiles : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
  }
  ClipPlan plan(const std::string& name, const ClipRules& rules, Problems& problems) const {
    const Item item{folder_ / name, {"x"}, (folder_ / name).string()};
    return plan_clips({item}, Probes(), rules, problems);
  }
  static std::vector<int64_t> starts(const ClipPlan& plan) {
    std::vector<int64_t> all;
    for (const Clip& clip : plan.clips) all.push_back(clip.start);
    return all;
  }
};

TEST_F(FootageFiles, VideosAreSplitAtCutsOrClipsAcrossThemAreDropped) {
  write_mp4(folder_ / "a.mp4", scenes(40, {10, 26}));
  ClipRules rules{.buckets = {{6, 48, 64}}, .fps = 8, .mode = ClipMode::chunks};
  using Starts = std::vector<int64_t>;
  Problems problems;
  EXPECT_EQ(starts(plan("a.mp4", rules, problems)), Starts({0, 6, 12, 18, 24, 30}));
  rules.cuts = Cuts::split;
  EXPECT_EQ(starts(plan("a.mp4", rules, problems)), Starts({0, 10, 16, 26, 32}));
  rules.cuts = Cuts::drop;
  EXPECT_EQ(starts(plan("a.mp4", rules, problems)), Starts({0, 12, 18, 30}));
  EXPECT_NE(problems.notes().back().find("leaves out 2 clips"), std::string::npos);
  rules.fps = 4;  // counted at the rate of training
  rules.cuts = Cuts::split;
  EXPECT_EQ(starts(plan("a.mp4", rules, problems)), Starts({5, 13}));
  EXPECT_NE(problems.notes().back().find("1 scenes that are too short"), std::string::npos);
  rules.buckets = {{30, 48, 64}}, rules.fps = 8;
  Problems short_ones(/*strict=*/true);
  EXPECT_TRUE(plan("a.mp4", rules, short_ones).clips.empty());
  EXPECT_EQ(short_ones.left_out().size(), 1u);
}

TEST_F(FootageFiles, BarsAreCutOffBeforeABucketIsChosen) {
  write_mp4(folder_ / "a.mp4", film(6, 96, 64, [](int i, int y, int x, int c) {
              return y < 24 || y >= 72 ? 0 : 60 + pattern(1, i, y, x, c) / 2;
            }));
  ClipRules rules{.buckets = {{6, 48, 64}, {6, 96, 64}}, .fps = 8, .max_crop = 1};
  Problems problems;
  ClipPlan kept = plan("a.mp4", rules, problems);
  EXPECT_EQ(kept.clips.at(0).bucket, 1);
  EXPECT_EQ(kept.preprocessing(kept.clips[0]), "cover+crop fps=8");
  rules.crop_bars = true;
  ClipPlan cropped = plan("a.mp4", rules, problems);
  ASSERT_EQ(cropped.clips.at(0).bucket, 0);
  EXPECT_EQ(cropped.preprocessing(cropped.clips[0]), "cover+crop fps=8 bars=0.25,0.25,0,0");
  const Frames frames = decode_clip(folder_ / "a.mp4", cropped.spec(cropped.clips[0]));
  EXPECT_EQ(std::pair(frames.height, frames.width), std::pair(48, 64));
  EXPECT_FALSE(look_at(frames).bars.any());
  for (const int y : {0, 47})
    for (const int x : {3, 40}) EXPECT_GT(frames.frame(2)[(y * 64 + x) * 3], 40) << y << " " << x;
  // A file without bars is planned and named as ever.
  write_mp4(folder_ / "b.mp4", scenes(6, {}));
  ClipPlan none = plan("b.mp4", rules, problems);
  EXPECT_EQ(none.preprocessing(none.clips.at(0)), "cover+crop fps=8");
}

TEST_F(FootageFiles, WhatWasSeenOfAVideoIsRemembered) {
  write_mp4(folder_ / "a.mp4", scenes(24, {10}));
  const Path file = folder_ / "probes.jsonl";
  const std::vector<Path> paths = {folder_ / "a.mp4"};
  update_probes(file, paths);
  EXPECT_FALSE(Probes(file).footage(paths[0], 8));
  update_footage(file, [&](const auto& take) { std::ranges::for_each(paths, take); }, 8, {});
  ASSERT_TRUE(Probes(file).footage(paths[0], 8));
  EXPECT_EQ(Probes(file).footage(paths[0], 8)->cuts, Cuts_({10}));
  EXPECT_FALSE(Probes(file).footage(paths[0], 4)) << "frames of another rate";
  write_mp4(paths[0], scenes(24, {15, 20}));
  EXPECT_FALSE(Probes(file).footage(paths[0], 8)) << "another file";
}

}  // namespace tessera::data
