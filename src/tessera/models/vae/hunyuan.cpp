#include "tessera/models/vae/hunyuan.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/hunyuan_config.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::hunyuan_vae {

int64_t usual_overlap(int64_t tile) { return tile / 4 / kStride * kStride; }

HunyuanVae::HunyuanVae(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiles_(grid_in_cells(tiling, kStride, "256 pixels that share 64 are usual")),
      time_tiles_(
          in_cells(tiling.frames, tiling.shared_frames, kTimeStride, "frames", "64 frames that share 16 are usual")),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)),
      mean_(at::full({config_.latent_channels}, config_.shift_factor, at::kFloat)),
      std_(at::full({config_.latent_channels}, 1 / config_.scaling_factor, at::kFloat)) {}

std::string HunyuanVae::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = weights_.hash();
  hash = hash_tensor(hash_tensor(hash, mean_), std_);
  hash = hash_tensor(hash, at::full({1}, config_.groups, at::kLong));
  char text[96];
  std::snprintf(text, sizeof text, "hunyuan-vae-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ = text + tiles_text(tiles_, kStride) + tiles_text("-frames", time_tiles_, kTimeStride);
  return fingerprint_;
}

std::array<int64_t, 4> HunyuanVae::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const bool fits = frames > 0 && (frames - 1) % kTimeStride == 0 && height > 0 && height % kStride == 0 && width > 0 &&
                    width % kStride == 0;
  if (!fits) {
    const auto near = [](int64_t n) { return std::max(kStride, n / kStride * kStride); };
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes 1 + " + std::to_string(kTimeStride) + "n frames, sizes in multiples of " +
                    std::to_string(kStride),
                {1 + std::max<int64_t>(0, frames - 1) / kTimeStride * kTimeStride, near(height), near(width)});
  }
  return {config_.latent_channels, 1 + (frames - 1) / kTimeStride, height / kStride, width / kStride};
}

Tensor HunyuanVae::moments(const Tensor& pixels) const {
  check_pixels(pixels);
  const auto [c, f, h, w] = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));
  const auto of_frames = [&, h = h, w = w](const Tensor& clip) {
    return stitch_clips(tiles_, h, w, 1, [&](const Part& y, const Part& x) {
      const Tensor tile = clip.narrow(2, y.begin * kStride, y.length * kStride)
                              .narrow(3, x.begin * kStride, x.length * kStride)
                              .to(device::here());
      return run_layers(encoder_, config_.groups, weights_.loaded(), in_range(tile)).cpu();
    });
  };
  if (!cut_in_time(f - 1)) return of_frames(pixels);
  return stitch_frames(time_tiles_, f - 1, 1, [&](const Part& groups) {
    return of_frames(pixels.narrow(1, groups.begin * kTimeStride, 1 + groups.length * kTimeStride));
  });
}

Tensor HunyuanVae::pixels(const Tensor& unscaled) const {
  const int64_t f = unscaled.size(1), h = unscaled.size(2), w = unscaled.size(3);
  const auto of_frames = [&](const Tensor& latent) {
    return stitch_clips(tiles_, h, w, kStride, [&](const Part& y, const Part& x) {
      const Tensor tile = latent.narrow(2, y.begin, y.length).narrow(3, x.begin, x.length).to(device::here());
      return run_layers(decoder_, config_.groups, weights_.loaded(), tile).cpu();
    });
  };
  if (!cut_in_time(f - 1)) return of_frames(unscaled);
  return stitch_frames(time_tiles_, f - 1, kTimeStride, [&](const Part& groups) {
    return of_frames(unscaled.narrow(1, groups.begin, 1 + groups.length));
  });
}

Posterior HunyuanVae::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  const Tensor both = moments(pixels);
  return {both.narrow(0, 0, config_.latent_channels), both.narrow(0, config_.latent_channels, config_.latent_channels)};
}

Tensor HunyuanVae::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  return (posterior(pixels).mean - config_.shift_factor).mul_(config_.scaling_factor).contiguous();
}

Tensor HunyuanVae::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  check_latent(latent, config_.latent_channels);
  return pixels((latent.to(at::kFloat) / config_.scaling_factor).add_(config_.shift_factor));
}

int64_t HunyuanVae::tiled_bytes(int64_t f, int64_t h, int64_t w, int64_t first, int64_t later,
                                const std::function<int64_t(int64_t f, int64_t h, int64_t w)>& pass) const {
  const auto [y, x] = parts_of(tiles_, h, w);
  const bool in_space = applies(tiles_, h, w), in_time = cut_in_time(f - 1);
  const int64_t tile_frames = in_time ? 1 + time_tiles_.size : f;
  int64_t bytes = pass(tile_frames, longest(y), longest(x));
  if (in_space) bytes += stitched_bytes(tiles_, first + (tile_frames - 1) * later, h, w);
  if (in_time) {
    const int64_t shared = time_tiles_.size - time_tiles_.stride;
    bytes += 4 * h * w * (first + (f - 1) * later + shared * later);
  }
  return bytes;
}

int64_t HunyuanVae::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const net::WeightMap meta = weights_.meta();
  return tiled_bytes(f, h, w, 2 * c, 2 * c, [&](int64_t tile_f, int64_t tile_h, int64_t tile_w) {
    const Tensor clip = at::empty({3, 1 + (tile_f - 1) * kTimeStride, tile_h * kStride, tile_w * kStride},
                                  at::TensorOptions(at::kByte).device(at::kMeta));
    return count([&] { run_layers(encoder_, config_.groups, meta, in_range(clip)); });
  });
}

plan::UnitWork HunyuanVae::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const std::vector<Part> groups_of = cut_in_time(f - 1) ? parts_of(time_tiles_, f - 1) : std::vector<Part>{{0, f - 1}};
  const GridParts parts = parts_of(tiles_, h, w);
  PassWork work(parameters(config_));
  for (const Part& groups : groups_of)
    for (const Part& y : parts.y)
      for (const Part& x : parts.x)
        add_work(encoder_, 1 + groups.length * kTimeStride, y.length * kStride, x.length * kStride, work);
  return work.work();
}

int64_t HunyuanVae::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const net::WeightMap meta = weights_.meta();
  const int64_t unscaled = 4 * c * f * h * w, cell = 3 * kStride * kStride;
  return unscaled +
         tiled_bytes(f, h, w, cell, kTimeStride * cell, [&, c = c](int64_t tile_f, int64_t tile_h, int64_t tile_w) {
           const Tensor latent =
               at::empty({c, tile_f, tile_h, tile_w}, at::TensorOptions(at::kFloat).device(at::kMeta));
           return count([&] { run_layers(decoder_, config_.groups, meta, latent); });
         });
}

namespace {

Tiling with_shared_frames(Tiling tiling) {
  if (tiling.shared_frames == Tiling::kUsual) tiling.shared_frames = tiling.frames / 4 / kTimeStride * kTimeStride;
  return tiling;
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.conv_in.conv.weight", "post_quant_conv.weight"}, "diffusers");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_groups(config, weights.file);
  stored.expect(parameters(config), "HunyuanVideo's autoencoder");
  return std::make_unique<HunyuanVae>(std::move(config), stored.reader(), with_shared_frames(tiling));
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<HunyuanVae>(Config{}, random_weights(parameters({})), with_shared_frames(tiling));
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"hunyuan_vae", "hunyuan_vae_tiled", "opensora_vae_tiling"},
          .presets = {{"hunyuan-vae", released}}};
}

}  // namespace tessera::models::hunyuan_vae
