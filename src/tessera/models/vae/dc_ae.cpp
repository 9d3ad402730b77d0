#include "tessera/models/vae/dc_ae.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/clip_size.h"
#include "tessera/models/vae/vae_values.h"

namespace tessera::models::dc_ae {

int64_t usual_overlap(int64_t tile) { return tile == 0 ? 0 : std::max<int64_t>(32, tile / 8 / 32 * 32); }

DcAe::DcAe(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiles_(grid_in_cells(tiling, config_.stride(), "512 pixels that share 64 are usual")),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)),
      mean_(at::zeros({config_.latent_channels}, at::kFloat)),
      std_(at::full({config_.latent_channels}, 1 / config_.scaling_factor, at::kFloat)) {}

std::string DcAe::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = weights_.hash();
  hash = hash_tensor(hash, std_);
  char text[64];
  std::snprintf(text, sizeof text, "dc-ae-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ = text + tiles_text(tiles_, config_.stride());
  return fingerprint_;
}

std::array<int64_t, 4> DcAe::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const int64_t cell = config_.stride();
  if (frames < 1 || height < 1 || height % cell != 0 || width < 1 || width % cell != 0) {
    const auto near = [cell](int64_t n) { return std::max(cell, n / cell * cell); };
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes sizes in multiples of " + std::to_string(cell),
                {std::max<int64_t>(1, frames), near(height), near(width)});
  }
  return {config_.latent_channels, frames, height / cell, width / cell};
}

Tensor DcAe::encode_frame(const Tensor& pixels, const net::WeightMap& weights) const {
  const int64_t cell = config_.stride(), h = pixels.size(1) / cell, w = pixels.size(2) / cell;
  const auto run = [&](const Part& y, const Part& x) {
    const Tensor part = pixels.narrow(1, y.begin * cell, y.length * cell).narrow(2, x.begin * cell, x.length * cell);
    return run_layers(encoder_, config_.head_dim, weights, in_range(part.to(device::here()))).cpu();
  };
  return applies(tiles_, h, w) ? stitch_tiles(tiles_, h, w, 1, run) : run({0, h}, {0, w});
}

Tensor DcAe::decode_frame(const Tensor& latent, const net::WeightMap& weights) const {
  const int64_t h = latent.size(1), w = latent.size(2);
  const auto run = [&](const Part& y, const Part& x) {
    return run_layers(decoder_, config_.head_dim, weights,
                      latent.narrow(1, y.begin, y.length).narrow(2, x.begin, x.length).to(device::here()))
        .cpu();
  };
  return applies(tiles_, h, w) ? stitch_tiles(tiles_, h, w, config_.stride(), run) : run({0, h}, {0, w});
}

Posterior DcAe::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  check_input(pixels.dim() == 4 && pixels.size(0) == 3, "models.vae", "pixels of another shape than [3, F, H, W]",
              "give pictures of three colours in [-1, 1]");
  const auto shape = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  Tensor latent = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < pixels.size(1); ++i)
    latent.select(1, i).copy_(encode_frame(pixels.select(1, i), weights_.loaded()));
  return {latent, {}};
}

Tensor DcAe::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  return posterior(pixels).mean.mul_(config_.scaling_factor);
}

Tensor DcAe::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  check_latent(latent, config_.latent_channels);
  const int64_t cell = config_.stride();
  const Tensor unscaled = latent.to(at::kFloat) / config_.scaling_factor;
  Tensor pixels = at::empty({3, latent.size(1), latent.size(2) * cell, latent.size(3) * cell}, at::kFloat);
  for (int64_t i = 0; i < latent.size(1); ++i)
    pixels.select(1, i).copy_(decode_frame(unscaled.select(1, i), weights_.loaded()));
  return pixels;
}

int64_t DcAe::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride();
  const auto [y, x] = parts_of(tiles_, h, w);
  const Tensor pixels =
      at::empty({3, longest(y) * cell, longest(x) * cell}, at::TensorOptions(at::kByte).device(at::kMeta));
  const net::WeightMap meta = weights_.meta();
  const int64_t pass = count([&] { run_layers(encoder_, config_.head_dim, meta, in_range(pixels)); });
  return pass + 4 * c * f * h * w + (applies(tiles_, h, w) ? stitched_bytes(tiles_, c, h, w) : 0);
}

plan::UnitWork DcAe::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride();
  const GridParts parts = parts_of(tiles_, h, w);
  PassWork work(parameters(config_));
  for (int64_t frame = 0; frame < f; ++frame)
    for (const Part& y : parts.y)
      for (const Part& x : parts.x) add_work(encoder_, config_.head_dim, y.length * cell, x.length * cell, work);
  return work.work();
}

int64_t DcAe::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride(), square = cell * cell;
  const auto [y, x] = parts_of(tiles_, h, w);
  const Tensor latent = at::empty({c, longest(y), longest(x)}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const net::WeightMap meta = weights_.meta();
  const int64_t pass = count([&] { run_layers(decoder_, config_.head_dim, meta, latent); });
  const int64_t whole = 4 * f * h * w * (c + 3 * square);  // the unscaled latent and the pixels
  return pass + whole + (applies(tiles_, h, w) ? stitched_bytes(tiles_, 3 * square, h, w) : 0);
}

}  // namespace tessera::models::dc_ae
