#include "tessera/families/frames/pixel_masks.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tessera/base/check.h"

namespace tessera::families {

namespace {

PixelDraws draws(std::mt19937_64& random) {
  const auto whole = [&random](int64_t least, int64_t most) {
    EXPECT_LE(least, most);
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  return {whole, [&random] { return static_cast<double>(random() % 1000) / 1000; },
          [whole](int64_t of, int64_t count) {
            std::vector<int64_t> all(static_cast<size_t>(of));
            std::iota(all.begin(), all.end(), 0);
            for (int64_t i = 0; i < count; ++i)
              std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(whole(i, of - 1))]);
            all.resize(static_cast<size_t>(count));
            return all;
          },
          [&random](int64_t) { return random() % 2 == 1; }};
}

int64_t made(const std::vector<uint8_t>& mask, const ClipSizes& clip, int64_t frame) {
  const auto begin = mask.begin() + frame * clip.height * clip.width;
  return std::accumulate(begin, begin + clip.height * clip.width, int64_t{0});
}

}  // namespace

TEST(PixelMasks, EveryKindOfEverySizeIsZerosAndOnes) {
  std::mt19937_64 random(7);
  for (const ClipSizes& clip : {ClipSizes{1, 1, 1}, {1, 16, 9}, {5, 3, 2}, {9, 17, 24}, {13, 8, 40}})
    for (int kind = 0; kind < kPixelMaskKinds; ++kind)
      for (int turn = 0; turn < 20; ++turn) {
        const auto mask = pixel_mask(kind, clip, draws(random));
        ASSERT_EQ(mask.size(), static_cast<size_t>(clip.frames * clip.height * clip.width));
        for (const uint8_t pixel : mask) ASSERT_LE(pixel, 1);
      }
}

TEST(PixelMasks, KindsGiveTheFramesThatTheyName) {
  std::mt19937_64 random(3);
  const ClipSizes clip{9, 16, 24};
  const int64_t whole = clip.height * clip.width;
  for (int turn = 0; turn < 50; ++turn) {
    const auto all = pixel_mask(1, clip, draws(random)), later = pixel_mask(2, clip, draws(random)),
               between = pixel_mask(3, clip, draws(random)), oval = pixel_mask(7, clip, draws(random)),
               frames = pixel_mask(9, clip, draws(random));
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), int64_t{0}), clip.frames * whole);
    EXPECT_EQ(made(later, clip, 0), 0);
    EXPECT_EQ(made(later, clip, 4), whole) << "at most four frames are given";
    EXPECT_EQ(made(between, clip, 0), 0);
    EXPECT_EQ(made(between, clip, 8), 0);
    EXPECT_EQ(made(between, clip, 4), whole);
    EXPECT_GT(made(oval, clip, 0), 0);
    EXPECT_LT(made(oval, clip, 0), whole);
    for (int64_t f = 1; f < clip.frames; ++f) EXPECT_EQ(made(oval, clip, f), 0) << "in the first frame alone";
    for (int64_t f = 0; f < clip.frames; ++f) EXPECT_EQ(made(frames, clip, f) % whole, 0) << "whole frames";
  }
}

TEST(PixelMasks, AnEdgeOfACircleIsOutside) {
  const std::vector<int64_t> numbers = {4, 4, 2};
  size_t next = 0;
  const PixelDraws fixed{[&](int64_t, int64_t) { return numbers[next++]; }, nullptr, nullptr, nullptr};
  const auto mask = pixel_mask(8, {1, 9, 9}, fixed);
  EXPECT_EQ(std::accumulate(mask.begin(), mask.end(), 0), 9);
  EXPECT_EQ(mask[4 * 9 + 6], 0) << "two pixels from the middle";
  EXPECT_EQ(mask[4 * 9 + 5], 1);
}

TEST(PixelMasks, KindsAreDrawnByTheirShares) {
  for (const bool picture : {false, true}) {
    const auto& weights = pixel_mask_weights(picture);
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
    std::array<double, kPixelMaskKinds> found{};
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i)
      found[static_cast<size_t>(pixel_mask_kind(picture ? 1 : 5, (i + 0.5) / kDraws))] += 1.0 / kDraws;
    for (size_t kind = 0; kind < found.size(); ++kind) EXPECT_NEAR(found[kind], weights[kind], 1e-3) << kind;
  }
  EXPECT_EQ(pixel_mask_kind(1, 0.9999999999999999), 8) << "a picture has none of a clip's kinds";
  const std::vector<Weighted> own = {{"frames", 3}, {"circle", 1}};
  EXPECT_EQ(pixel_mask_kind(5, 0.2, own), 8) << "in the order of the kinds, whatever that of the weights";
  for (const double u : {0.26, 0.5, 0.99}) EXPECT_EQ(pixel_mask_kind(5, u, own), 9);
  EXPECT_EQ(pixel_mask_kind(1, 0.99, own), 8) << "a picture has those of its kinds";
  EXPECT_EQ(pixel_mask_kind(1, 0.5, {{"frames", 1}}), 1) << "or everything is made";
  EXPECT_THROW(pixel_mask(10, {1, 1, 1}, {}), UserError);
}

}  // namespace tessera::families
