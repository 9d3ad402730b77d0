#include "tessera/models/vae/dc_ae.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/models/vae/dc_ae_layers.h"

namespace tessera::models::dc_ae {

namespace {

std::vector<Layer> encoder_of(const Config& config) {
  return encoder_layers({config.encoder, config.latent_channels, config.head_dim, false});
}
std::vector<Layer> decoder_of(const Config& config) {
  return decoder_layers({config.decoder, config.latent_channels, config.head_dim, false});
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_of(config), decoder_of(config)});
}

DcAe::DcAe(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "dc-ae",
                .scaling = {.std = at::full({config.latent_channels, 1}, 1 / config.scaling_factor, at::kFloat),
                            .times =
                                [factor = config.scaling_factor] {
                                  return at::full({1, 1}, factor, at::kFloat);
                                }},
                .parameters = dc_ae::parameters(config),
                .read = std::move(read),
                .cell = config.stride(),
                .tiling = tiling,
                .usual_tiles = "512 pixels that share 64 are usual"}),
      config_(std::move(config)),
      encoder_(encoder_of(config_)),
      decoder_(decoder_of(config_)) {}

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

Tensor DcAe::moments(const Tensor& pixels, LayerRunner& run) const {
  Tensor latent = empty_result(latent_shape(pixels.size(1), pixels.size(2), pixels.size(3)), pixels);
  for (int64_t i = 0; i < pixels.size(1); ++i)
    latent.narrow(1, i, 1).copy_(
        encode_tiles(pixels.narrow(1, i, 1),
                     [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(encoder_, tile)); }));
  return latent;
}

Tensor DcAe::pixels(const Tensor& unscaled, LayerRunner& run) const {
  const int64_t cell = config_.stride(), frames = unscaled.size(1);
  Tensor pixels = at::empty({3, frames, unscaled.size(2) * cell, unscaled.size(3) * cell}, at::kFloat);
  for (int64_t i = 0; i < frames; ++i)
    pixels.narrow(1, i, 1).copy_(
        decode_tiles(unscaled.narrow(1, i, 1),
                     [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(decoder_, tile)); }));
  return pixels;
}

int64_t DcAe::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [rows, columns] = largest_tile_pixels(height, width);
  return pass_bytes(encoder_, on_meta({3, 1, rows, columns}, at::kByte), count) + 4 * c * f * h * w +
         stitching_bytes(c, h, w);
}

int64_t DcAe::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile(h, w);
  const int64_t cell = 3 * config_.stride() * config_.stride();
  return pass_bytes(decoder_, on_meta({c, 1, tile_h, tile_w}), count) +
         4 * f * h * w * (c + cell) +  // the unscaled latent and the pixels
         stitching_bytes(cell, h, w);
}

namespace {

const std::string kEfficientvit = "efficientvit";

/// The tensors of a file under diffusers' names, whatever it calls them.
class Stored {
 public:
  explicit Stored(WeightSource weights) : weights_(std::move(weights)) {
    const auto foreign = [](const std::string& name, const std::string& naming) {
      return naming == kEfficientvit ? in_efficientvit(name).name : name;
    };
    // these two tell the naming; which others there are depends on the sizes
    naming_ = detect_naming({"encoder.conv_in.weight", "decoder.conv_in.weight"}, foreign, {"diffusers", kEfficientvit},
                            weights_.names, weights_.file);
  }

  /// Empty for a tensor that is not there.
  std::vector<int64_t> shape(const std::string& name) const {
    const StoredRows rows = place(name);
    if (!has_tensor(weights_, rows.name)) return {};
    std::vector<int64_t> shape = weights_.shape(rows.name);
    if (shape.empty() || shape[0] % rows.parts != 0) return shape;
    shape[0] /= rows.parts;
    if (pointwise(name) && shape.size() == 4) shape.resize(2);  // a linear here, a 1x1 convolution there
    return shape;
  }

  void expect(const Parameter& parameter, const std::string& hint) const {
    const StoredRows rows = place(parameter.name);
    std::vector<int64_t> whole = parameter.shape;
    whole[0] *= rows.parts;
    if (pointwise(parameter.name)) whole.insert(whole.end(), {1, 1});
    expect_tensor(weights_, rows.name, whole, hint);
  }

  Tensor read(const std::string& name) const {
    const StoredRows rows = place(name);
    const Tensor whole = weights_.read(rows.name);
    const int64_t count = whole.size(0) / rows.parts;
    const Tensor part = rows.parts == 1 ? whole : whole.narrow(0, rows.part * count, count).clone();
    return pointwise(name) ? part.flatten(1) : part;
  }

 private:
  bool original() const { return naming_.naming == kEfficientvit; }
  StoredRows place(const std::string& name) const {
    StoredRows rows = original() ? in_efficientvit(name) : StoredRows{name};
    rows.name.insert(0, naming_.prefix);
    return rows;
  }
  /// Linear in diffusers and a convolution in this file.
  bool pointwise(const std::string& name) const {
    return original() && name.find(".attn.to_") != name.npos && name.find("multiscale") == name.npos;
  }

  const WeightSource weights_;
  Naming naming_;
};

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const auto stored = std::make_shared<const Stored>(weights);
  Config config = config_of_weights([&](const std::string& name) { return stored->shape(name); }, weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  for (const Parameter& parameter : parameters(config))
    stored->expect(parameter, "these are not weights of DC-AE f32c32 as Sana uses it");
  return std::make_unique<DcAe>(
      std::move(config), [stored](const std::string& name) { return stored->read(name); }, tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<DcAe>(Config{}, random_weights(parameters({})), tiling);
}

/// 64 pixels for tiles of 512.
int64_t usual_overlap(int64_t tile) { return tile == 0 ? 0 : std::max<int64_t>(32, tile / 8 / 32 * 32); }

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = weight_forms(),
          .make = make,
          .usual_overlap = usual_overlap,
          .picture_cases = {"dc_ae", "dc_ae_tiled"},
          .presets = {{"dc-ae-f32c32", released}}};
}

}  // namespace tessera::models::dc_ae

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
