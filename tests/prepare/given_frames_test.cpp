#include <gtest/gtest.h>

#include "tessera/families/frames/frame_masks.h"
#include "tessera/prepare/pictures.h"

namespace tessera::prepare {
namespace {

/// Its latents are the pixels.
class Pixels final : public net::VideoCodec {
 public:
  std::string fingerprint() const override { return "pixels"; }
  std::array<int64_t, 4> latent_shape(int64_t frames, int64_t height, int64_t width) const override {
    return {3, frames, height, width};
  }
  at::Tensor encode(const at::Tensor& pixels) const override { return pixels.clone(); }
  at::Tensor decode(const at::Tensor& latent) const override { return latent; }
};

/// Frame after frame red, white where `white`.
data::Frames clip(int frames, bool white) {
  data::Frames all{frames, 24, 32, 16, {}};
  for (int i = 0; i < frames * 24 * 32; ++i)
    for (const int value : {255, white ? 255 : 0, white ? 255 : 0}) all.rgb.push_back(static_cast<uint8_t>(value));
  return all;
}

TEST(GivenFrames, NoisyOnesAreTheWholeClipWithTheShareOfNoiseThatItsBytesSay) {
  const Pixels codec;
  const families::GivenFrames noisy{0, 8, 0, 8, true};
  std::vector<double> shares;
  for (const bool white : {false, true}) {
    const at::Tensor pixels = encode_given(codec, clip(8, white), noisy);
    ASSERT_EQ(pixels.sizes(), (std::vector<int64_t>{3, 8, 24, 32}));
    EXPECT_TRUE(pixels.equal(encode_given(codec, clip(8, white), noisy))) << "wherever it is encoded";
    const double share = pixels[0].std().item<double>();  // of a channel that is 1 everywhere
    EXPECT_GT(share, families::kLeastNoise - 0.01);
    EXPECT_LT(share, families::kMostNoise + 0.01);
    for (int64_t channel = 0; channel < 3; ++channel) {
      const double value = channel == 0 || white ? 1 : -1;
      EXPECT_NEAR(pixels[channel].mean().item<double>(), (1 - share) * value, 0.02) << channel;
      EXPECT_NEAR(pixels[channel].std().item<double>(), share, 0.02) << channel;
    }
    shares.push_back(share);
  }
  EXPECT_GT(std::abs(shares[0] - shares[1]), 1e-3) << "another clip, another share";
  const at::Tensor first = encode_given(codec, clip(8, true), {0, 1, 0, 1});
  EXPECT_EQ(first.sizes(), (std::vector<int64_t>{3, 1, 24, 32}));
  EXPECT_EQ(first.min().item<float>(), 1) << "others have none";
}

}  // namespace
}  // namespace tessera::prepare
