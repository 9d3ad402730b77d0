#include "tessera/models/vae/haar.h"

#include "golden.h"
#include "tessera/base/check.h"

namespace tessera::models {

namespace {

/// A smooth moving pattern in [-1, 1], a stand-in for film.
at::Tensor random_clip(int64_t frames, int64_t height, int64_t width) {
  const auto ramp = [](int64_t n) { return at::arange(n, at::kFloat); };
  const at::Tensor t = ramp(frames).view({1, -1, 1, 1}), y = ramp(height).view({1, 1, -1, 1}),
                   x = ramp(width).view({1, 1, 1, -1});
  const at::Tensor phase = at::tensor({0.0F, 0.4F, 0.9F}).view({3, 1, 1, 1});
  return 0.6 * at::sin(0.11 * x + 0.2 * t + phase) + 0.3 * at::cos(0.17 * y - 0.1 * t + phase);
}

double psnr(const at::Tensor& a, const at::Tensor& b) {
  return 10 * std::log10(4 / (a - b).square().mean().item<double>());
}

}  // namespace

TEST(Haar, DecodedLatentsEncodeToThemselves) {
  const Haar codec(96);
  const at::Tensor latent = at::randn({96, 2, 3, 4});
  const at::Tensor video = codec.decode(latent);
  EXPECT_EQ(video.sizes(), at::IntArrayRef({3, 8, 24, 32}));
  expect_close(codec.encode(video), latent, 2e-4, "latent");
}

TEST(Haar, AllCoefficientsKeepEveryPixel) {
  const Haar codec(768);
  const at::Tensor video = at::rand({3, 4, 16, 8}) * 2 - 1;
  expect_close(codec.decode(codec.encode(video)), video, 1e-5, "video");
}

TEST(Haar, MoreChannelsComeCloser) {
  const at::Tensor video = random_clip(8, 32, 48);
  double last = 0;
  for (const int64_t channels : {12, 48, 96, 192}) {
    const Haar codec(channels);
    const double now = psnr(codec.decode(codec.encode(video)), video);
    EXPECT_GT(now, last) << channels;
    last = now;
  }
  EXPECT_GT(last, 30);
}

TEST(Haar, AFlatPictureIsItsFirstChannelAlone) {
  const Haar codec(48);
  const at::Tensor latent = codec.encode(at::full({3, 4, 8, 8}, 0.5));
  EXPECT_NEAR(latent[0].item<double>(), 0.5 * std::sqrt(768.0) / 9.9, 1e-4)
      << "an orthonormal mean over its typical size";
  EXPECT_LT(latent.slice(0, 1).abs().max().item<double>(), 1e-4);
}

TEST(Haar, AnImageIsFourEqualFrames) {
  const Haar codec(96);
  const at::Tensor image = random_clip(1, 16, 16);
  const at::Tensor latent = codec.encode(image);
  EXPECT_EQ(latent.sizes(), at::IntArrayRef(codec.latent_shape(1, 16, 16)));
  expect_close(latent, codec.encode(image.expand({3, 4, 16, 16})), 0, "latent");
}

TEST(Haar, SizesThatDoNotFitAreRefused) {
  const Haar codec(96);
  EXPECT_EQ(codec.latent_shape(16, 64, 96), (std::array<int64_t, 4>{96, 4, 8, 12}));
  for (const auto& [f, h, w] :
       std::vector<std::array<int64_t, 3>>{{17, 64, 96}, {16, 60, 96}, {16, 64, 100}, {0, 64, 96}}) {
    try {
      codec.latent_shape(f, h, w);
      ADD_FAILURE() << f;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      for (const char* words : {"multiple of 4", "1 + 4n frames", "set data.vae"})
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(Haar(0), UserError);
  EXPECT_THROW(Haar(769), UserError);
  EXPECT_NE(Haar(48).fingerprint(), Haar(96).fingerprint());
}

}  // namespace tessera::models
