#include "tessera/models/vae/dc_ae_video.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/models/vae/dc_ae_layers.h"

namespace tessera::models::dc_ae_video {

namespace {

dc_ae::Half half_of(const Config& config, int64_t Stage::*depth) {
  dc_ae::Half half = {{}, config.latent_channels, config.head_dim, true};
  for (const Stage& stage : config.stages)
    half.stages.push_back({stage.width, stage.*depth, stage.attention, stage.halves_time});
  return half;
}

/// Where time is halved, for the fingerprint.
std::vector<Tensor> halvings(const Config& config) {
  std::vector<Tensor> all;
  for (const Stage& stage : config.stages) all.push_back(at::full({1}, stage.halves_time, at::kLong));
  return all;
}

}  // namespace

std::vector<Layer> encoder_layers(const Config& config) {
  return dc_ae::encoder_layers(half_of(config, &Stage::encoder_depth));
}
std::vector<Layer> decoder_layers(const Config& config) {
  return dc_ae::decoder_layers(half_of(config, &Stage::decoder_depth));
}

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_layers(config), decoder_layers(config)});
}

DcAeVideo::DcAeVideo(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "dc-ae-video",
                .settings = halvings(config),
                .scaling = {.std = at::full({config.latent_channels, 1}, config.scaling_factor, at::kFloat)},
                .parameters = dc_ae_video::parameters(config),
                .read = std::move(read),
                .cell = config.stride(),
                .tiling = tiling,
                .cell_frames = config.time_stride(),
                .usual_frames = "32 frames that share 8 are usual"}),
      config_(std::move(config)),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)) {}

int64_t DcAeVideo::frames_of(int64_t latent_frames) const {
  if (!cut_in_time(latent_frames)) return shown(latent_frames);
  int64_t frames = 0;
  for (const Part& part : parts_of(time_tiles_, latent_frames))
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

Tensor DcAeVideo::moments(const Tensor& pixels, LayerRunner& run) const {
  const int64_t time = config_.time_stride(), frames = pixels.size(1), f = frames == 1 ? 1 : frames / time;
  latent_shape(1, pixels.size(2), pixels.size(3));  // refuses sides
  check_input(frames == 1 || (frames > 0 && frames % time == 0), "models.vae",
              "a clip of " + std::to_string(frames) + " frames", "give 1, or a multiple of " + std::to_string(time));
  const auto of_frames = [&](const Tensor& clip) {
    return encode_tiles(clip,
                        [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(encoder_, tile)); });
  };
  if (!cut_in_time(f)) return of_frames(pixels);
  return stitch_parts(
      time_tiles_, f, time_tiles_.shared(), [](int64_t cells) { return cells; },
      [&](const Part& part) { return of_frames(pixels.narrow(1, part.begin * time, part.length * time)); });
}

Tensor DcAeVideo::pixels(const Tensor& unscaled, LayerRunner& run) const {
  const auto of_frames = [&](const Tensor& latent) {
    return decode_tiles(latent,
                        [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(decoder_, tile)); });
  };
  const int64_t f = unscaled.size(1);
  if (!cut_in_time(f)) return of_frames(unscaled);
  return stitch_parts(
      time_tiles_, f, time_tiles_.shared() * config_.time_stride(), [&](int64_t cells) { return shown(cells); },
      [&](const Part& part) { return of_frames(unscaled.narrow(1, part.begin, part.length)); });
}

int64_t DcAeVideo::stitching(const std::array<int64_t, 4>& latent, int64_t tile, int64_t all, int64_t shared) const {
  const auto [c, f, h, w] = latent;
  return stitching_bytes(tile, h, w) + (cut_in_time(f) ? 4 * h * w * (all + shared) : 0);
}

int64_t DcAeVideo::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const std::array<int64_t, 4> latent = latent_shape(frames, height, width);
  const auto [c, f, h, w] = latent;
  const auto [rows, columns] = largest_tile_pixels(height, width);
  const int64_t length = frames == 1 ? 1 : tile_frames(f) * config_.time_stride();
  return pass_bytes(encoder_, on_meta({3, length, rows, columns}, at::kByte), count) +
         stitching(latent, c * tile_frames(f), c * f, c * time_tiles_.shared());
}

int64_t DcAeVideo::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const std::array<int64_t, 4> latent = latent_shape(frames, height, width);
  const auto [c, f, h, w] = latent;
  const auto [tile_h, tile_w] = largest_tile(h, w);
  const int64_t cell = 3 * config_.stride() * config_.stride();
  return 4 * c * f * h * w + pass_bytes(decoder_, on_meta({c, tile_frames(f), tile_h, tile_w}), count) +
         stitching(latent, cell * shown(tile_frames(f)), cell * shown(f),
                   cell * time_tiles_.shared() * config_.time_stride());
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
          .usual_overlap = quarter_of_tile<32>,
          .clip_cases = {"opensora_dc_ae"},
          .presets = {{"dc-ae-f32t4c128", released}}};
}

}  // namespace tessera::models::dc_ae_video
