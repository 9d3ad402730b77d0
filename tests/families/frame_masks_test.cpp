#include "tessera/families/frames/frame_masks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/families/frames/given_frames.h"

namespace tessera::families {

namespace {

/// Always the least or the most that may be drawn.
MaskDraws ends(bool most) {
  return {[most](int64_t a, int64_t b) { return most ? b : a; }, [most](double a, double b) { return most ? b : a; },
          [](int64_t frame) { return frame % 2 == 0 ? 0.05 : 0.95; }};
}

std::string text(const std::vector<char>& mask) {
  std::string all;
  for (const char m : mask) all += m ? 'x' : '.';
  return all;
}

}  // namespace

TEST(Windows, AreThoseOfAReferenceThatWalksAlongTheClip) {
  for (int64_t length = 2; length <= 13; ++length)
    for (int64_t overlap = 1; overlap < length; ++overlap)
      for (int64_t real = 1; real <= 60; ++real) {
        int64_t padded = std::max(real, length);  // the least that is not less, in whole windows
        while ((padded - overlap) % (length - overlap) != 0) ++padded;
        const Windows windows{length, overlap, real};
        int64_t count = 0;
        for (int64_t start = 0; start + overlap < padded; start += length - overlap, ++count)
          EXPECT_EQ(windows.begin(count), start) << length << " " << overlap << " " << real;
        EXPECT_EQ(windows.count(), count) << length << " " << overlap << " " << real;
        EXPECT_EQ(windows.end(count - 1), padded) << length << " " << overlap << " " << real;
      }
  EXPECT_EQ(Windows().count(), 1);
}

TEST(Windows, ShowAShortVideoToAndFro) {
  for (int64_t frames = 1; frames <= 7; ++frames) {
    int64_t frame = 0, step = 1;
    for (int64_t place = 0; place < 40; ++place) {
      EXPECT_EQ(to_and_fro(place, frames), frame) << frames << " " << place;
      if (frame + step < 0 || frame + step >= frames) step = -step;
      if (frames > 1) frame += step;
    }
  }
}

TEST(FrameMasks, GiveTheFramesOfTheirKind) {
  const auto mask = [](const char* kind, int64_t frames, bool most = false) {
    return text(frame_mask(kind, frames, ends(most)));
  };
  EXPECT_EQ(mask("identity", 8), "xxxxxxxx");
  EXPECT_EQ(mask("image_head", 8), ".xxxxxxx");
  EXPECT_EQ(mask("image_tail", 8), "xxxxxxx.");
  EXPECT_EQ(mask("image_head_tail", 8), ".xxxxxx.");
  EXPECT_EQ(mask("image_random", 8, true), "xxxxxxx.");
  EXPECT_EQ(mask("quarter_head", 8, true), "..xxxxxx");
  EXPECT_EQ(mask("quarter_head_tail", 8, true), "..xxxx..");
  EXPECT_EQ(mask("quarter_random", 8), ".xxxxxxx");
  EXPECT_EQ(mask("interpolate", 5), ".x.x.");
  EXPECT_EQ(mask("intepolate", 5, true), "x.x.x") << "as its programs spell it";
  EXPECT_EQ(mask("random", 4), ".x.x");
}

TEST(FrameMasks, TrainAtLeastOneFrameAndNeverMaskAPicture) {
  EXPECT_EQ(text(frame_mask("image_head_tail", 2, ends(false))), ".x");
  EXPECT_EQ(text(frame_mask("random", 4, ends(true))), ".x.x") << "0.95 is above 0.9, 0.05 is not";
  for (const std::string& kind : mask_kinds()) {
    EXPECT_EQ(text(frame_mask(kind, 1, ends(true))), "x") << kind;
    for (int64_t frames = 2; frames < 9; ++frames)
      for (const bool most : {false, true})
        EXPECT_NE(std::ranges::count(frame_mask(kind, frames, ends(most)), 1), 0) << kind << frames;
  }
}

TEST(FrameMasks, AreDrawnByRatiosAndUnknownOnesAreRefused) {
  const std::vector<Weighted> ratios = {{"random", 0.25}, {"image_head", 0.5}};
  EXPECT_EQ(masked_by(ratios, 0.1), "random");
  EXPECT_EQ(masked_by(ratios, 0.25), "image_head");
  EXPECT_EQ(masked_by(ratios, 0.75), "identity");
  try {
    frame_mask("image_haed", 4, ends(false));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean image_head?"), std::string::npos) << error.what();
  }
}

TEST(FramesBeside, AreThoseOfTheirKindAndNeverAllOfOther) {
  const auto given = [](const char* kind, int64_t frames, bool most = false) {
    return text(frames_beside(kind, frames, ends(most)));
  };
  EXPECT_EQ(given("none", 5), ".....");
  EXPECT_EQ(given("i2v", 5), "x....") << "as its program calls i2v_head as well";
  EXPECT_EQ(given("i2v_tail", 5), "....x");
  EXPECT_EQ(given("i2v_loop", 5), "x...x");
  EXPECT_EQ(given("v2v_head_noisy", 5), "xx...");
  EXPECT_EQ(given("v2v_tail", 5), "..xxx");
  EXPECT_EQ(given("other", 5), "x....") << "from the begin, one frame";
  EXPECT_EQ(given("other", 5, true), "...xx") << "to the end, from the last frame that may be the first";
  for (int64_t frames = 2; frames < 7; ++frames)
    for (const bool most : {false, true}) {
      const std::string both = given("other_noisy", frames, most);
      EXPECT_NE(both.find('x'), both.npos) << frames;
      EXPECT_NE(both.find('.'), both.npos) << frames;
    }
  EXPECT_TRUE(gives_noisy("v2v_head_noisy", frames_beside("v2v_head_noisy", 5, {})));
  EXPECT_FALSE(gives_noisy("other_noisy", frames_beside("other", 5, ends(true)))) << "the first frame is none of them";
  EXPECT_FALSE(gives_noisy("v2v_head", frames_beside("v2v_head", 5, {})));
  EXPECT_TRUE(any_noisy({{"none", 1}, {"v2v_head_noisy", 2}}));
  EXPECT_FALSE(any_noisy({{"v2v_head", 1}, {"v2v_head_noisy", 0}}));
  EXPECT_FALSE(any_beside({{"none", 1}, {"i2v_head", 0}}));
  try {
    beside_kind("v2v_haed");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean v2v_head?"), std::string::npos) << error.what();
  }
}

TEST(FramesBeside, ThePlanTakesTheKindThatPartsAClipMostOften) {
  using Frames = std::vector<int64_t>;
  EXPECT_EQ(most_parted({{"none", 1}, {"i2v_loop", 1}, {"v2v_head", 1}}, 5), (Frames{0, 4}));
  EXPECT_EQ(most_parted({{"i2v_loop", 0}, {"other", 1}}, 5), (Frames{0}));
  EXPECT_EQ(most_parted({{"i2v_loop", 1}, {"i2v_head", 1}}, 2), (Frames{0})) << "both are neighbours";
  EXPECT_EQ(most_parted({{"none", 1}}, 5), (Frames{}));
  EXPECT_EQ(most_parted({{"i2v_loop", 1}}, 1), (Frames{})) << "a picture";
}

TEST(GivenFrames, AreAskedForOnceAndNamedInKeys) {
  const std::vector<Weighted> kinds = {{"t2v", 1}, {"i2v_head", 2}, {"i2v_loop", 1}, {"v2v_tail", 1}, {"v2v_head", 0}};
  EXPECT_EQ(given_text(kinds), "first last last33");
  EXPECT_EQ(given_text({{"t2v", 1}}), "");
  const auto longer = all_given(kinds, 37, 10);
  ASSERT_EQ(longer.size(), 3u);
  EXPECT_EQ(longer[0].name(), "given.0-1");
  EXPECT_EQ(longer[1].name(), "given.36-37");
  EXPECT_EQ(longer[2].name(), "given.4-37");
  EXPECT_EQ(all_given(kinds, 33, 9).size(), 2u) << "33 of 33 frames are no condition";
  EXPECT_TRUE(all_given(kinds, 1, 1).empty());
  EXPECT_TRUE(is_given_name("given.0-1"));
  EXPECT_FALSE(is_given_name("y"));
}

}  // namespace tessera::families
