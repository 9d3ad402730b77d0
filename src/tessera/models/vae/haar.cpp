#include "tessera/models/vae/haar.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models {

using at::Tensor;

namespace {

constexpr int64_t kFrames = 4, kPixels = 8, kColours = 3;
constexpr int64_t kBlock = kColours * kFrames * kPixels * kPixels;

// Typical size (standard deviation) of a brightness coefficient, by its level along time, height and width: 0 is the
// mean, 1 the coarsest detail, 3 the finest. Measured on clips of film and of animation at 64x96, pixels in [-1, 1].
constexpr double kDeviation[3][4][4] = {
    {{9.9, 2.6, 1.4, 0.63}, {2.6, 1.1, 0.70, 0.35}, {1.4, 0.70, 0.46, 0.25}, {0.63, 0.35, 0.25, 0.15}},
    {{2.9, 0.86, 0.48, 0.25}, {0.86, 0.43, 0.27, 0.16}, {0.48, 0.27, 0.19, 0.12}, {0.25, 0.16, 0.12, 0.085}},
    {{1.2, 0.55, 0.31, 0.16}, {0.55, 0.30, 0.19, 0.11}, {0.31, 0.19, 0.13, 0.083}, {0.16, 0.11, 0.083, 0.057}}};
// The colour differences are smaller by these factors, by colour and level along time.
constexpr double kColour[3][3] = {{1, 1, 1}, {0.20, 0.14, 0.15}, {0.13, 0.06, 0.06}};

/// Level of row i of the Haar matrix: 0, 1, 2, 2, 3, 3, 3, 3.
int level(int64_t i) {
  int result = 0;
  for (; i > 0; i /= 2) ++result;
  return result;
}

/// Orthonormal Haar matrix [n, n], coarse rows first.
Tensor haar_matrix(int64_t n) {
  if (n == 1) return at::ones({1, 1}, at::kDouble);
  const Tensor coarse = at::kron(haar_matrix(n / 2), at::tensor({1.0, 1.0}).to(at::kDouble).view({1, 2}));
  const Tensor fine = at::kron(at::eye(n / 2, at::kDouble), at::tensor({1.0, -1.0}).to(at::kDouble).view({1, 2}));
  return at::cat({coarse, fine}) / std::sqrt(2.0);
}

/// Brightness, red against blue, green against both: orthonormal rows.
Tensor colour_matrix() {
  const Tensor rows = at::tensor({1.0, 1.0, 1.0, 1.0, 0.0, -1.0, 1.0, -2.0, 1.0}, at::kDouble).view({3, 3});
  return rows / rows.square().sum(1, /*keepdim=*/true).sqrt();
}

/// Typical size of every coefficient, in the order of the rows of kron(colour, time, height, width).
std::vector<double> deviations() {
  std::vector<double> result;
  for (int64_t c = 0; c < kColours; ++c)
    for (int64_t t = 0; t < kFrames; ++t)
      for (int64_t y = 0; y < kPixels; ++y)
        for (int64_t x = 0; x < kPixels; ++x)
          result.push_back(kColour[c][level(t)] * kDeviation[level(t)][level(y)][level(x)]);
  return result;
}

}  // namespace

Haar::Haar(int64_t channels) : channels_(channels) {
  if (channels < 1 || channels > kBlock)
    throw UserError(Exit::usage, "models.haar",
                    std::to_string(channels) + " channels: a block has 1 to " + std::to_string(kBlock),
                    "48 suits small models, 96 looks better");
  const std::vector<double> size = deviations();
  std::vector<int64_t> order(kBlock);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return size[a] > size[b]; });
  order.resize(channels);
  const Tensor kept = at::tensor(order, at::kLong);
  const Tensor all =
      at::kron(at::kron(colour_matrix(), haar_matrix(kFrames)), at::kron(haar_matrix(kPixels), haar_matrix(kPixels)));
  const Tensor rows = all.index_select(0, kept);                                          // [channels, 768]
  const Tensor scale = at::tensor(size, at::kDouble).index_select(0, kept).unsqueeze(1);  // [channels, 1]
  analysis_ = (rows / scale).t().contiguous().to(at::kFloat);
  synthesis_ = (rows * scale).to(at::kFloat);
}

std::string Haar::fingerprint() const { return "haar-4x8x8-" + std::to_string(channels_) + "-v1"; }

std::array<int64_t, 4> Haar::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const bool fits = (frames == 1 || (frames > 0 && frames % kFrames == 0)) && height > 0 && width > 0 &&
                    height % kPixels == 0 && width % kPixels == 0;
  if (!fits) {
    const auto near = [](int64_t n, int64_t step) { return std::max(step, n / step * step); };
    refuse_size("models.haar", {frames, height, width},
                "the wavelet of data.vae takes 1 frame or a multiple of 4, sizes in multiples of 8; a released "
                "autoencoder takes 1 + 4n frames: set data.vae to its file if the run is meant to use it",
                {near(frames, kFrames), near(height, kPixels), near(width, kPixels)});
  }
  return {channels_, std::max<int64_t>(1, frames / kFrames), height / kPixels, width / kPixels};
}

Tensor Haar::encode(const Tensor& pixels) const {
  const auto [k, f, h, w] = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  const Tensor video = pixels.expand({kColours, f * kFrames, h * kPixels, w * kPixels});  // one frame becomes four
  const Tensor blocks = video.reshape({kColours, f, kFrames, h, kPixels, w, kPixels})
                            .permute({1, 3, 5, 0, 2, 4, 6})
                            .reshape({-1, kBlock});
  return at::mm(blocks.to(at::kFloat), analysis_).view({f, h, w, k}).permute({3, 0, 1, 2}).contiguous();
}

Tensor Haar::decode(const Tensor& latent) const {
  check_input(latent.dim() == 4 && latent.size(0) == channels_, "models.haar",
              "a latent of other channels than " + std::to_string(channels_), "run prepare again");
  const int64_t f = latent.size(1), h = latent.size(2), w = latent.size(3);
  const Tensor blocks = at::mm(latent.permute({1, 2, 3, 0}).reshape({-1, channels_}).to(at::kFloat), synthesis_);
  return blocks.view({f, h, w, kColours, kFrames, kPixels, kPixels})
      .permute({3, 0, 4, 1, 5, 2, 6})
      .reshape({kColours, f * kFrames, h * kPixels, w * kPixels});
}

}  // namespace tessera::models
