#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/dc_ae_video.h"
#include "tessera/models/vae/dc_ae_video_config.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models::dc_ae_video {

int64_t usual_overlap(int64_t tile) { return tile / 4 / 32 * 32; }

DcAeVideo::DcAeVideo(Config config, ReadWeight read, const Tiling& tiling)
    : config_(std::move(config)),
      weights_(parameters(config_), std::move(read)),
      tiles_(grid_in_cells(tiling, config_.stride(), "256 pixels that share 64 are usual")),
      time_tiles_(in_cells(tiling.frames, tiling.shared_frames, config_.time_stride(), "frames",
                           "32 frames that share 8 are usual")),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)),
      mean_(at::zeros({config_.latent_channels}, at::kFloat)),
      std_(at::full({config_.latent_channels}, config_.scaling_factor, at::kFloat)) {}

std::string DcAeVideo::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  uint64_t hash = hash_tensor(weights_.hash(), std_);
  for (const Stage& stage : config_.stages) hash = hash_tensor(hash, at::full({1}, stage.halves_time, at::kLong));
  char text[64];
  std::snprintf(text, sizeof text, "dc-ae-video-%016llx-v1", static_cast<unsigned long long>(hash));
  fingerprint_ =
      text + tiles_text(tiles_, config_.stride()) + tiles_text("-frames", time_tiles_, config_.time_stride());
  return fingerprint_;
}

std::vector<Part> DcAeVideo::time_parts(int64_t latent_frames) const {
  return cut_in_time(latent_frames) ? parts_of(time_tiles_, latent_frames) : std::vector<Part>{{0, latent_frames}};
}

int64_t DcAeVideo::frames_of(int64_t latent_frames) const {
  if (!cut_in_time(latent_frames)) return shown(latent_frames);
  int64_t frames = 0;
  for (const Part& part : time_parts(latent_frames))
    frames += std::min(time_tiles_.stride * config_.time_stride(), shown(part.length));
  return frames;
}

std::array<int64_t, 4> DcAeVideo::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const int64_t cell = config_.stride(), time = config_.time_stride();
  const auto comes_back = [&](int64_t n) { return n == 1 || (n > 0 && n % time == 0 && frames_of(n / time) == n); };
  if (!comes_back(frames) || height < 1 || height % cell != 0 || width < 1 || width % cell != 0) {
    const auto near = [cell](int64_t n) { return std::max(cell, n / cell * cell); };
    int64_t fewer = std::max<int64_t>(1, frames);
    while (!comes_back(fewer)) --fewer;
    const std::string four = std::to_string(time);
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes 1 frame or a multiple of " + four + " from " + std::to_string(2 * time) +
                    " on, whose last tile in time has more than " + four + ", sizes in multiples of " +
                    std::to_string(cell),
                {fewer, near(height), near(width)});
  }
  return {config_.latent_channels, frames == 1 ? 1 : frames / time, height / cell, width / cell};
}

Tensor DcAeVideo::latents(const Tensor& pixels) const {
  check_pixels(pixels);
  const int64_t cell = config_.stride(), time = config_.time_stride();
  const auto [c, one, h, w] = latent_shape(1, pixels.size(2), pixels.size(3));
  const int64_t frames = pixels.size(1), f = frames == 1 ? 1 : frames / time;
  check_input(frames == 1 || (frames > 0 && frames % time == 0), "models.vae",
              "a clip of " + std::to_string(frames) + " frames", "give 1, or a multiple of " + std::to_string(time));
  const auto of_frames = [&, h = h, w = w](const Tensor& clip) {
    return stitch_clips(tiles_, h, w, 1, [&](const Part& y, const Part& x) {
      const Tensor tile =
          clip.narrow(2, y.begin * cell, y.length * cell).narrow(3, x.begin * cell, x.length * cell).to(device::here());
      return run_layers(encoder_, config_.head_dim, weights_.loaded(), in_range(tile)).cpu();
    });
  };
  if (!cut_in_time(f)) return of_frames(pixels);
  return stitch_parts(
      time_tiles_, f, time_tiles_.size - time_tiles_.stride, [](int64_t cells) { return cells; },
      [&](const Part& part) { return of_frames(pixels.narrow(1, part.begin * time, part.length * time)); });
}

Tensor DcAeVideo::pixels(const Tensor& unscaled) const {
  const int64_t f = unscaled.size(1), h = unscaled.size(2), w = unscaled.size(3);
  const auto of_frames = [&](const Tensor& latent) {
    return stitch_clips(tiles_, h, w, config_.stride(), [&](const Part& y, const Part& x) {
      const Tensor tile = latent.narrow(2, y.begin, y.length).narrow(3, x.begin, x.length).to(device::here());
      return run_layers(decoder_, config_.head_dim, weights_.loaded(), tile).cpu();
    });
  };
  if (!cut_in_time(f)) return of_frames(unscaled);
  return stitch_parts(
      time_tiles_, f, (time_tiles_.size - time_tiles_.stride) * config_.time_stride(),
      [&](int64_t cells) { return shown(cells); },
      [&](const Part& part) { return of_frames(unscaled.narrow(1, part.begin, part.length)); });
}

Posterior DcAeVideo::posterior(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  return {latents(pixels), {}};
}

Tensor DcAeVideo::encode(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  return latents(pixels).div(config_.scaling_factor).contiguous();
}

Tensor DcAeVideo::decode(const Tensor& latent) const {
  const at::NoGradGuard no_grad;
  check_latent(latent, config_.latent_channels);
  return pixels(latent.to(at::kFloat) * config_.scaling_factor);
}

int64_t DcAeVideo::tiled_bytes(const std::array<int64_t, 3>& fhw, const std::function<int64_t(int64_t f)>& numbers,
                               int64_t shared,
                               const std::function<int64_t(int64_t f, int64_t h, int64_t w)>& pass) const {
  const auto [f, h, w] = fhw;
  const auto [y, x] = parts_of(tiles_, h, w);
  const bool in_space = applies(tiles_, h, w), in_time = cut_in_time(f);
  const int64_t tile_f = in_time ? time_tiles_.size : f;
  int64_t bytes = pass(tile_f, longest(y), longest(x));
  if (in_space) bytes += stitched_bytes(tiles_, numbers(tile_f), h, w);
  if (in_time) bytes += 4 * h * w * (numbers(f) + shared);
  return bytes;
}

int64_t DcAeVideo::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const net::WeightMap meta = weights_.meta();
  const int64_t cell = config_.stride();
  return tiled_bytes(
      {f, h, w}, [c = c](int64_t n) { return c * n; }, c * (time_tiles_.size - time_tiles_.stride),
      [&](int64_t tile_f, int64_t tile_h, int64_t tile_w) {
        const int64_t length = frames == 1 ? 1 : tile_f * config_.time_stride();
        const Tensor clip =
            at::empty({3, length, tile_h * cell, tile_w * cell}, at::TensorOptions(at::kByte).device(at::kMeta));
        return count([&] { run_layers(encoder_, config_.head_dim, meta, in_range(clip)); });
      });
}

int64_t DcAeVideo::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const at::NoGradGuard no_grad;
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const net::WeightMap meta = weights_.meta();
  const int64_t square = 3 * config_.stride() * config_.stride();
  return 4 * c * f * h * w + tiled_bytes(
                                 {f, h, w}, [&](int64_t n) { return square * shown(n); },
                                 square * (time_tiles_.size - time_tiles_.stride) * config_.time_stride(),
                                 [&, c = c](int64_t tile_f, int64_t tile_h, int64_t tile_w) {
                                   const Tensor latent = at::empty({c, tile_f, tile_h, tile_w},
                                                                   at::TensorOptions(at::kFloat).device(at::kMeta));
                                   return count([&] { run_layers(decoder_, config_.head_dim, meta, latent); });
                                 });
}

plan::UnitWork DcAeVideo::encode_work(int64_t frames, int64_t height, int64_t width) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const int64_t cell = config_.stride();
  const GridParts parts = parts_of(tiles_, h, w);
  PassWork work(parameters(config_));
  for (const Part& part : time_parts(f))
    for (const Part& y : parts.y)
      for (const Part& x : parts.x)
        add_work(encoder_, config_.head_dim, frames == 1 ? 1 : part.length * config_.time_stride(), y.length * cell,
                 x.length * cell, work);
  return work.work();
}

namespace {

Tiling with_shared_frames(Tiling tiling, const Config& config) {
  const int64_t four = config.time_stride();
  if (tiling.shared_frames == Tiling::kUsual) tiling.shared_frames = tiling.frames / 4 / four * four;
  return tiling;
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.project_in.conv.weight", "decoder.project_in.main.conv.weight"},
                             "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  stored.expect(parameters(config), "Open-Sora 2.0's video DC-AE");
  const Tiling tiles = with_shared_frames(tiling, config);
  return std::make_unique<DcAeVideo>(std::move(config), stored.reader(), tiles);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<DcAeVideo>(Config{}, random_weights(parameters({})), with_shared_frames(tiling, {}));
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"opensora_dc_ae"},
          .presets = {{"dc-ae-f32t4c128", released}}};
}

}  // namespace tessera::models::dc_ae_video
