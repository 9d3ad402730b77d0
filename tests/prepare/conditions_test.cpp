// What models are given beside a clip: which sound a row of it hears, and which pictures it begins and ends with.
#include <gtest/gtest.h>

#include <fstream>

#include "folder_test.h"
#include "tessera/data/video.h"
#include "tessera/prepare/pictures.h"
#include "tessera/prepare/sounds.h"

namespace tessera::prepare {

namespace {

/// One latent frame of so many frames; causal: the first is of one alone.
class Codec final : public net::VideoCodec {
 public:
  Codec(int64_t step, bool causal) : step_(step), causal_(causal) {}
  std::string fingerprint() const override { return "codec"; }
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override {
    return {4, causal_ ? 1 + (frames - 1) / step_ : frames / step_, height / 8, width / 8};
  }
  at::Tensor encode(const at::Tensor& pixels) const override { return pixels; }
  at::Tensor decode(const at::Tensor& latent) const override { return latent; }

 private:
  const int64_t step_;
  const bool causal_;
};

/// Frames of one level each, 10 apart from the first on.
data::Frames greys(int count, int first) {
  data::Frames frames{.count = count, .height = 32, .width = 32, .fps = 8, .rgb = {}};
  for (int i = 0; i < count; ++i)
    frames.rgb.insert(frames.rgb.end(), frames.frame_bytes(), static_cast<uint8_t>(first + 10 * i));
  return frames;
}

double level(const at::Tensor& picture) { return (picture.mean().item<double>() + 1) * 127.5; }

}  // namespace

TEST(SoundRows, BeginWithTheFrameBehindThePicture) {
  for (const int64_t n : {1, 4, 20}) {
    const SoundRows rows = sound_rows(Codec(4, true), 1 + 4 * n, 64, 64, 16, 4);
    EXPECT_EQ(rows.count, 4 * n);
    EXPECT_EQ(rows.rate, 16) << "four rows of four frames";
    EXPECT_EQ(rows.offset, 0) << "a causal picture is one frame, and sound counts from it";
  }
  const SoundRows demo = sound_rows(Codec(4, false), 8, 64, 64, 8, 4);
  EXPECT_EQ(demo.count, 4);
  EXPECT_EQ(demo.rate, 8);
  EXPECT_EQ(demo.offset, 3.0 / 8) << "a picture of four frames";
  EXPECT_EQ(sound_rows(Codec(8, true), 17, 64, 64, 24, 4).rate, 4 * 24 / 8.0);
}

TEST(PictureLatents, MarkTheFramesThatAreGivenInTheMaskOfEachLatentFrame) {
  for (const auto& [step, mask] : {std::pair<int64_t, int64_t>{4, 4}, {8, 8}}) {
    const int64_t frames = 1 + 2 * step, latents = 3;
    const Codec codec(step, true);
    for (const bool last : {false, true}) {
      Pictures pictures;
      pictures.first = at::full({3, 16, 16}, 0.5);
      if (last) pictures.last = at::full({3, 16, 16}, -0.5);
      // this codec gives the pixels back: their planes are behind those of the mask, if it has latents of their size
      class Same final : public net::VideoCodec {
       public:
        explicit Same(const Codec& of) : of_(of) {}
        std::string fingerprint() const override { return "same"; }
        std::array<int64_t, 4> latent_shape(int64_t f, int64_t h, int64_t w) const override {
          return of_.latent_shape(f, h, w);
        }
        at::Tensor encode(const at::Tensor& pixels) const override {
          const auto [c, f, h, w] = of_.latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
          return at::full({c, f, h, w}, pixels.select(1, 0).mean().item<double>());
        }
        at::Tensor decode(const at::Tensor& latent) const override { return latent; }

       private:
        const Codec& of_;
      };
      const at::Tensor y = picture_latent(Same(codec), pictures, frames, mask);
      ASSERT_EQ(y.size(0), mask + 4);
      ASSERT_EQ(y.size(1), latents);
      const at::Tensor marks = y.slice(0, 0, mask).amax({2, 3});
      for (int64_t f = 0; f < latents; ++f)
        for (int64_t m = 0; m < mask; ++m) {
          const bool given = f == 0 || (last && f == latents - 1 && m == mask - 1);
          EXPECT_EQ(marks[m][f].item<double>(), given ? 1 : 0) << "latent frame " << f << ", mark " << m << last;
        }
      EXPECT_NEAR(y[mask][0][0][0].item<double>(), 0.5, 1e-6) << "the picture itself";
    }
  }
}

class ClipPictures : public FolderTest {
 protected:
  void SetUp() override {
    if (!data::has_video()) GTEST_SKIP() << "built without FFmpeg";
    FolderTest::SetUp();
    data::write_mp4(folder_ / "clip.mp4", greys(6, 60));
    data::write_mp4(folder_ / "first.mp4", greys(1, 150));
    data::write_mp4(folder_ / "last.mp4", greys(1, 200));
  }
  Pictures pictures(bool first, bool last, bool takes_last = true) const {
    data::Item item{.path = folder_ / "clip.mp4", .captions = {"a"}, .where = "clip"};
    if (first) item.first_image = folder_ / "first.mp4";
    if (last) item.last_image = folder_ / "last.mp4";
    net::Conditions wanted;
    wanted.first_image = true, wanted.last_image = takes_last;
    return clip_pictures(item, {.frames = 5, .height = 32, .width = 32}, wanted);
  }
};

TEST_F(ClipPictures, AreTheRowsOwnOrTheClipsFirstAndLastFrame) {
  for (const bool first : {false, true})
    for (const bool last : {false, true}) {
      const Pictures found = pictures(first, last);
      EXPECT_NEAR(level(found.first), first ? 150 : 60, 3) << first << last;
      EXPECT_NEAR(level(found.last), last ? 200 : 100, 3) << first << last;
    }
  EXPECT_FALSE(pictures(false, true, /*takes_last=*/false).last.defined());
  EXPECT_NEAR(level(pictures(false, true, /*takes_last=*/false).first), 60, 3);
}

}  // namespace tessera::prepare
