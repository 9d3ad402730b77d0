// What a clip is given by a draw: the same on every rank and in every run, by the shares of the recipe.
#include "tessera/prepare/condition_draws.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tessera/data/video.h"
#include "tessera/models/registry.h"

namespace tessera::prepare {

namespace {

namespace fs = std::filesystem;
using families::ConditionShares;

constexpr int kFrames = 9, kHeight = 16, kWidth = 24;

/// A clip of noise as a folder's file, and a picture.
class Clips : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!data::has_video()) GTEST_SKIP() << "needs FFmpeg";
    fs::create_directories(folder_);
    data::Frames frames{kFrames, kHeight, kWidth, 8, {}};
    for (size_t i = 0; i < static_cast<size_t>(kFrames) * frames.frame_bytes(); ++i)
      frames.rgb.push_back(static_cast<uint8_t>(40 + 20 * (i / frames.frame_bytes()) + i % 7));
    data::write_mp4(folder_ / "clip.mp4", frames);
    data::write_mp4(folder_ / "guide.mp4", frames);
    const std::vector<uint8_t> png = data::write_png(frames, 0);
    for (const char* name : {"one.png", "two.png", "three.png"})
      std::ofstream(folder_ / name, std::ios::binary) << std::string(png.begin(), png.end());
    item_.path = folder_ / "clip.mp4";
  }
  void TearDown() override { fs::remove_all(folder_); }

  ClipDraw draw(int64_t number = 0) const { return *clip_draw(draws_, item_, spec_, number); }
  net::Guides guides(int64_t number = 0, int64_t most = 4) const {
    return shown_guides(item_, spec_, follows_clips(), most, draw(number));
  }
  static net::Conditions follows_clips() {
    net::Conditions wanted;
    wanted.guides = {"guide", "guide_mask"};
    wanted.references = 4;
    return wanted;
  }
  /// Of 1000 draws, those of which it is so.
  template <class Is>
  double share(const Is& is) const {
    double so = 0;
    for (int64_t number = 0; number < 1000; ++number) so += is(draw(number));
    return so / 1000;
  }

  fs::path folder_ = fs::temp_directory_path() / ("condition-draws-" + std::to_string(getpid()));
  data::Item item_;
  data::ClipSpec spec_{.frames = kFrames, .height = kHeight, .width = kWidth, .fps = 8};
  families::ConditionDraws draws_{.count = 3};
};

}  // namespace

TEST_F(Clips, HaveTheSameDrawsWhereverTheyLieAndOthersByNumber) {
  std::set<std::string> masks;
  for (int64_t number = 0; number < 24; ++number) {
    const at::Tensor mask = drawn_mask(draw(number), kFrames, kHeight, kWidth);
    EXPECT_TRUE(at::equal(mask, drawn_mask(draw(number), kFrames, kHeight, kWidth)));
    EXPECT_TRUE(((mask == 0) | (mask == 1)).all().item<bool>());
    data::Item moved = item_;
    moved.path = "/elsewhere/clip.mp4";
    EXPECT_TRUE(at::equal(mask, drawn_mask(*clip_draw(draws_, moved, spec_, number), kFrames, kHeight, kWidth)));
    masks.insert(std::string(static_cast<const char*>(mask.data_ptr()), mask.nbytes()));
  }
  EXPECT_GT(masks.size(), 12u) << "a fifth are of ones";
  data::ClipSpec later = spec_;
  later.start = 1;
  int other = 0;
  for (int64_t number = 0; number < 24; ++number)
    other += !at::equal(drawn_mask(draw(number), kFrames, kHeight, kWidth),
                        drawn_mask(*clip_draw(draws_, item_, later, number), kFrames, kHeight, kWidth));
  EXPECT_GT(other, 12) << "two clips of a video";
  EXPECT_FALSE(clip_draw({}, item_, spec_, 0).has_value());
}

TEST_F(Clips, TakeEachOfTheirDrawsByEpochAndPlace) {
  std::map<int64_t, int> taken;
  for (int64_t epoch = 0; epoch < 30; ++epoch)
    for (int64_t index = 0; index < 100; ++index) {
      const int64_t number = draw_of_sample(draws_, 4, epoch, index);
      EXPECT_EQ(number, draw_of_sample(draws_, 4, epoch, index));
      ++taken[number];
    }
  EXPECT_EQ(taken.size(), 3u);
  for (const auto& [number, times] : taken) EXPECT_NEAR(times / 3000.0, 1 / 3.0, 0.03) << number;
  EXPECT_EQ(draw_of_sample({}, 4, 2, 7), 0);
}

TEST_F(Clips, SharesAndKindsOfMasksAreTheRecipes) {
  EXPECT_NEAR(share([](const ClipDraw& d) { return drawn_frame(d, kFrames) == 0; }), 0.4, 0.05);
  EXPECT_NEAR(share([](const ClipDraw& d) { return drawn_frame(d, kFrames) == kFrames - 1; }), 0.6 / 8, 0.03);
  EXPECT_NEAR(share([](const ClipDraw& d) { return d.happens(&ConditionShares::photo); }), 0.25, 0.05);
  EXPECT_NEAR(share([](const ClipDraw& d) {
                return d.happens(&ConditionShares::photo) && d.happens(&ConditionShares::inpaint);
              }),
              0.25 * 0.75, 0.05)
      << "neither says anything of the other";
  draws_.shares.photo = 0, draws_.masks = {{"all", 1}};
  EXPECT_EQ(share([](const ClipDraw& d) { return d.happens(&ConditionShares::photo); }), 0);
  EXPECT_TRUE(drawn_mask(draw(), kFrames, kHeight, kWidth).all().item<bool>());
  EXPECT_NE(draw_text(draws_, 0), draw_text({.count = 3}, 0)) << "other entries of the cache";
  EXPECT_NE(draw_text(draws_, 0), draw_text(draws_, 1));
  draws_.count = 7;
  EXPECT_EQ(draw_text(draws_, 1), draw_text({.count = 3, .shares = draws_.shares, .masks = draws_.masks}, 1))
      << "more draws leave those that are there";
  draws_.count = 0;
  EXPECT_EQ(draw_text(draws_, 0), "");
}

TEST_F(Clips, AreGivenOutsideOfAMaskOrAreMadeFromWhatTheirRowSays) {
  draws_.shares.inpaint = 1, draws_.masks = {{"box", 1}};
  for (int64_t number = 0; number < 4; ++number) {
    const net::Guides own = guides(number);
    const at::Tensor made = (own.clips.at("guide_mask").slice(0, 0, 1) + 1) / 2;
    EXPECT_TRUE(at::equal(made, drawn_mask(draw(number), kFrames, kHeight, kWidth)));
    EXPECT_EQ((own.clips.at("guide") * made).abs().max().item<double>(), 0) << "grey where it is to be made";
    EXPECT_FALSE(own.clips.contains("guide_split"));
  }
  item_.guide = folder_ / "guide.mp4";
  draws_.shares.inpaint = 0;
  const net::Guides followed = guides(1);
  EXPECT_FALSE(followed.clips.contains("guide_mask")) << "all is shown to be made";
  EXPECT_TRUE(followed.clips.contains("guide_split"));
  EXPECT_GT(followed.clips.at("guide").abs().min().item<double>(), 0) << "whole";
  item_.guide_mask = folder_ / "guide.mp4";
  EXPECT_FALSE(guides(1).clips.contains("guide_split")) << "the row's own mask parts it";
  item_.guide.clear();
  draws_.shares.inpaint = 0;
  const net::Guides masked = guides(1);
  EXPECT_TRUE(masked.clips.contains("guide") && masked.clips.contains("guide_mask")) << "there is nothing else to give";
}

TEST_F(Clips, HaveSomeOfTheirRowsPicturesOrAFrameOfTheirOwn) {
  item_.references = {folder_ / "one.png", folder_ / "two.png", folder_ / "three.png"};
  item_.guide = folder_ / "guide.mp4";
  draws_.shares.photo = 0, draws_.shares.inpaint = 0;
  std::map<size_t, int> counts;
  for (int64_t number = 0; number < 60; ++number) {
    const net::Guides all = guides(number);
    ++counts[all.references.size()];
    EXPECT_LE(guides(number, 1).references.size(), 1u);
  }
  EXPECT_EQ(counts.size(), 4u) << "none to three";
  EXPECT_GT(counts[3], counts[2]) << "three and four of four are three";
  draws_.shares.photo = 1;
  const net::Guides photo = guides(2);
  ASSERT_EQ(photo.references.size(), 1u);
  EXPECT_EQ(photo.references[0].sizes(), (std::vector<int64_t>{3, kHeight, kWidth}));
  EXPECT_TRUE(guides(2, 0).references.empty());
  draws_.shares.inpaint = 1, draws_.shares.no_references = 1;
  EXPECT_TRUE(guides(2).references.empty());
}

TEST_F(Clips, OfAPersonHaveTheirFirstFrameOrNoBackground) {
  net::Conditions wanted = follows_clips();
  wanted.guides = {"pose", "face", "guide", "guide_mask"};
  wanted.always_reference = true, wanted.references = 1, wanted.face_size = 8;
  item_.guide = item_.guide_mask = item_.pose = item_.face = folder_ / "guide.mp4";
  const auto shown = [&](double previous, double nothing) {
    draws_.shares.previous = previous, draws_.shares.no_background = nothing;
    return shown_guides(item_, spec_, wanted, 1, draw());
  };
  const net::Guides plain = shown(0, 0), begun = shown(1, 0), none = shown(1, 1);
  EXPECT_EQ(plain.clips.at("face").sizes(), (std::vector<int64_t>{3, kFrames, 8, 8}));
  ASSERT_EQ(plain.references.size(), 1u) << "the clip's first frame";
  EXPECT_TRUE(at::equal(plain.references[0], begun.clips.at("guide").select(1, 0)));
  EXPECT_EQ(begun.clips.at("guide_mask").select(1, 0).max().item<double>(), -1) << "it is given";
  EXPECT_TRUE(at::equal(begun.clips.at("guide_mask").slice(1, 1), plain.clips.at("guide_mask").slice(1, 1)));
  EXPECT_FALSE(none.clips.contains("guide") || none.clips.contains("guide_mask"));
  item_.guide.clear(), item_.guide_mask.clear();
  EXPECT_EQ(shown(1, 0).clips.at("guide").slice(1, 1).abs().max().item<double>(), 0) << "grey behind it";
  item_.face = item_.path;
  EXPECT_THROW(shown(0, 0), UserError) << "a clip that drives itself";
}

TEST_F(Clips, OfModelsWithAReferenceBeginWithItOrShowIt) {
  const auto model = models::make_denoiser(
      {.config_text =
           R"({"model_type":"i2v","dim":16,"num_heads":2,"ffn_dim":16,"num_layers":1,"in_dim":18,"out_dim":6,"text_dim":8,
               "text_len":4,"freq_dim":8,"image_dim":6,"image_len":3,"in_dim_ref_conv":6})"});
  const net::Conditions wanted = model->conditions();
  ASSERT_GT(wanted.control_dim, 0);
  ASSERT_EQ(wanted.mask_channels, 0);
  int first = 0;
  for (int64_t number = 0; number < 12; ++number) {
    const Pictures pictures = shown_pictures(item_, spec_, *model, draw(number));
    const Controls controls = shown_controls(item_, spec_, wanted, draw(number));
    first += pictures.first.defined();
    EXPECT_NE(pictures.first.defined(), controls.picture.defined()) << "never both";
    EXPECT_TRUE(pictures.shown.defined());
    if (controls.picture.defined()) EXPECT_TRUE(at::equal(controls.picture.select(1, 0), pictures.shown));
  }
  EXPECT_GT(first, 0);
  EXPECT_LT(first, 12);
  item_.references = {folder_ / "one.png"};
  EXPECT_FALSE(shown_controls(item_, spec_, wanted, draw()).picture.defined()) << "the row has its own";
  EXPECT_FALSE(shown_pictures(item_, spec_, *model, draw()).first.defined());
}

}  // namespace tessera::prepare
