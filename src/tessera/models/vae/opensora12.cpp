#include "tessera/models/vae/opensora12.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/vae/hunyuan.h"

namespace tessera::models::opensora12_vae {

namespace {

const std::string kTime = "temporal_vae.";

hunyuan_vae::KlForm pictures(const Config& config) {
  return {.prefix = "spatial_vae.module.",
          .conv = {},
          .widths = config.widths,
          .layers = config.layers,
          .latent_channels = config.latent_channels,
          .norm = {config.groups, 1e-6},
          .in_time = false};
}

GroupNorm time_norm(const Config& config) { return {config.time_groups, 1e-5}; }

/// Causal 3x3x3; residual blocks and the first layer have no biases.
void add_blocks(std::vector<Layer>& layers, const Config& config, const std::string& name, int64_t in, int64_t out) {
  for (int64_t i = 0; i < config.time_layers; ++i, in = out) {
    const std::string at = name + std::to_string(i);
    layers.push_back(residual(time_norm(config), at + ".norm1",
                              {.site = at + ".conv1.conv", .in = in, .out = out, .biased = false}, at + ".norm2",
                              {.site = at + ".conv2.conv", .in = out, .out = out, .biased = false},
                              {at + ".conv3.conv", in, out, {1, 1, 1}, false}, {}));
  }
}

/// Half the frames.
Layer shrink(const std::string& site, int64_t width) {
  return conv({site, width, width}, {.border = {.front = 1}, .time_stride = 2});
}

/// conv to twice the channels, of which pairs become two frames: channel 2 c + i is channel c of the frame i of two.
Layer stretch(const std::string& site, int64_t width) {
  Layer twice = conv({site, width, 2 * width});
  return {twice.parameters, [apply = twice.apply](LayerRunner& run, Tensor x) {
            const Tensor y = apply(run, std::move(x));
            const int64_t t = y.size(0), h = y.size(1), w = y.size(2);
            return y.view({t, h, w, -1, 2}).permute({0, 4, 1, 2, 3}).reshape({2 * t, h, w, -1}).contiguous();
          }};
}

/// [C, ..] to mean and log variance [2C, ..].
std::vector<Layer> time_encoder(const Config& config) {
  const std::vector<int64_t>& widths = config.time_widths;
  const std::string name = kTime + "encoder.";
  const int64_t moments = 2 * config.latent_channels;
  std::vector<Layer> layers = {
      conv({.site = name + "conv_in.conv", .in = config.latent_channels, .out = config.time_first, .biased = false})};
  for (size_t level = 0; level < widths.size(); ++level) {
    add_blocks(layers, config, name + "block_res_blocks." + std::to_string(level) + ".",
               level == 0 ? config.time_first : widths[level - 1], widths[level]);
    if (level + 1 < widths.size() && config.halved[level])
      layers.push_back(shrink(name + "conv_blocks." + std::to_string(level) + ".conv", widths[level]));
  }
  add_blocks(layers, config, name + "res_blocks.", widths.back(), widths.back());
  layers.push_back(head(time_norm(config), name + "norm1", {name + "conv2.conv", widths.back(), moments, {1, 1, 1}},
                        {.border = {.front = 0, .before = 0, .after = 0}}));
  layers.push_back(pointwise({kTime + "quant_conv.conv", moments, moments, {1, 1, 1}}));
  return layers;
}

/// [C, ..] to [C, ..].
std::vector<Layer> time_decoder(const Config& config) {
  const std::vector<int64_t>& widths = config.time_widths;
  const std::string name = kTime + "decoder.";
  const int64_t c = config.latent_channels;
  std::vector<Layer> layers = {pointwise({kTime + "post_quant_conv.conv", c, c, {1, 1, 1}}),
                               conv({name + "conv1.conv", c, widths.back()})};
  add_blocks(layers, config, name + "res_blocks.", widths.back(), widths.back());
  for (size_t level = widths.size(); level-- > 0;) {
    const int64_t from = widths[level + 1 == widths.size() ? level : level + 1];
    add_blocks(layers, config, name + "block_res_blocks." + std::to_string(level) + ".", from, widths[level]);
    if (level > 0 && config.halved[level - 1])
      layers.push_back(stretch(name + "conv_blocks." + std::to_string(level - 1) + ".conv", widths[level]));
  }
  layers.push_back(head(time_norm(config), name + "norm1", {name + "conv_out.conv", widths.front(), c}));
  return layers;
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  const hunyuan_vae::KlForm form = pictures(config);
  return parameters_of({kl_encoder(form), kl_decoder(form), time_encoder(config), time_decoder(config)});
}

OpenSoraVae12::OpenSoraVae12(Config config, ReadWeight read, const Tiling& tiling)
    : TwoStageVae({.name = "opensora1.2-vae",
                   .settings = {at::tensor({config.groups, config.time_groups, config.piece}, at::kLong),
                                at::full({1}, config.factor, at::kDouble)},
                   .scaling = {.mean = constants(config.mean), .std = constants(config.std)},
                   .parameters = opensora12_vae::parameters(config),
                   .read = std::move(read),
                   .cell = kStride,
                   .tiling = tiling}),
      config_(std::move(config)),
      picture_encoder_(kl_encoder(pictures(config_))),
      picture_decoder_(kl_decoder(pictures(config_))),
      time_encoder_(time_encoder(config_)),
      time_decoder_(time_decoder(config_)) {}

std::vector<Part> OpenSoraVae12::pieces(int64_t frames) const {
  return parts_of({config_.piece, config_.piece}, frames);
}

int64_t OpenSoraVae12::latent_frames(int64_t frames) const {
  return frames / config_.piece * config_.latent_piece() + div_up(frames % config_.piece, config_.time_stride());
}

int64_t OpenSoraVae12::frames_of(int64_t latent_frames) const {
  if (latent_frames == 1) return 1;
  return latent_frames / config_.latent_piece() * config_.piece +
         latent_frames % config_.latent_piece() * config_.time_stride();
}

std::array<int64_t, 4> OpenSoraVae12::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  const auto tells = [&](int64_t n) { return n > 0 && frames_of(latent_frames(n)) == n; };
  if (!tells(frames) || height < kStride || width < kStride) {
    int64_t fewer = std::max<int64_t>(1, frames);
    while (!tells(fewer)) --fewer;
    refuse_size("models.vae", {frames, height, width},
                "the autoencoder takes 1 frame, " + std::to_string(config_.piece) + "n, or " +
                    std::to_string(config_.piece) + "n and a multiple of " + std::to_string(config_.time_stride()) +
                    ", sides of " + std::to_string(kStride) + " pixels or more",
                {fewer, std::max(kStride, height), std::max(kStride, width)});
  }
  return {config_.latent_channels, latent_frames(frames), height / kStride, width / kStride};
}

Tensor OpenSoraVae12::time_piece(const Tensor& pictures, LayerRunner& run) const {
  const int64_t lead = round_up(pictures.size(1), config_.time_stride()) - pictures.size(1);
  return run.run(time_encoder_, lead == 0 ? pictures : at::constant_pad_nd(pictures, {0, 0, 0, 0, lead, 0}));
}

Tensor OpenSoraVae12::encode_piece(const Tensor& pixels, LayerRunner& run) const {
  const int64_t c = config_.latent_channels, frames = pixels.size(1);
  const Tensor pictures =
      at::empty({c, frames, pixels.size(2) / kStride, pixels.size(3) / kStride}, pixels.options().dtype(at::kFloat));
  for (int64_t i = 0; i < run.alike(pixels, frames); ++i) {
    const Tensor moments = run.run(picture_encoder_, pixels.narrow(1, i, 1));
    pictures.narrow(1, i, 1).copy_(moments.narrow(0, 0, c) * config_.factor);
  }
  return time_piece(pictures, run);
}

void OpenSoraVae12::decode_piece(const Tensor& latent, int64_t frames, LayerRunner& run,
                                 const std::function<void(int64_t i, const Tensor& frame)>& store) const {
  const Tensor pictures = run.run(time_decoder_, latent);
  const int64_t lead = pictures.size(1) - frames;
  for (int64_t i = 0; i < run.alike(latent, frames); ++i)
    store(i, run.run(picture_decoder_, pictures.narrow(1, lead + i, 1) / config_.factor));
}

Tensor OpenSoraVae12::picture_moments(const Tensor& pixels) const {
  const at::NoGradGuard no_grad;
  check_pixels(pixels);
  LayerRunner run(weights_);
  std::vector<Tensor> all;
  for (int64_t i = 0; i < pixels.size(1); ++i)
    all.push_back(on_host(run.run(picture_encoder_, pixels.narrow(1, i, 1))));
  return at::cat(all, 1);
}

Tensor OpenSoraVae12::time_moments(const Tensor& pictures) const {
  const at::NoGradGuard no_grad;
  LayerRunner run(weights_);
  std::vector<Tensor> all;
  for (const Part& part : pieces(pictures.size(1)))
    all.push_back(on_host(time_piece(pictures.narrow(1, part.begin, part.length), run)));
  return at::cat(all, 1);
}

Tensor OpenSoraVae12::moments(const Tensor& pixels, LayerRunner& run) const {
  return encode_tiles(pixels, [&](const Tensor& tile, const Part& y, const Part& x) {
    const int64_t frames = pixels.size(1);
    Tensor result = empty_result({2 * config_.latent_channels, latent_frames(frames), y.length, x.length}, tile);
    int64_t done = 0;
    for (const Part& part : pieces(frames)) {
      const Tensor piece = encode_piece(on_device(tile.narrow(1, part.begin, part.length)), run);
      result.narrow(1, done, piece.size(1)).copy_(piece);
      done += piece.size(1);
    }
    return result;
  });
}

Tensor OpenSoraVae12::decoded(const Tensor& unscaled, int64_t frames, LayerRunner& run) const {
  const Tensor video = at::empty({3, frames, unscaled.size(2) * kStride, unscaled.size(3) * kStride}, at::kFloat);
  int64_t done = 0;
  for (const Part& part : pieces(frames)) {
    const int64_t count = div_up(part.length, config_.time_stride());
    decode_piece(unscaled.narrow(1, done, count), part.length, run,
                 [&](int64_t i, const Tensor& frame) { video.narrow(1, part.begin + i, 1).copy_(frame); });
    done += count;
  }
  return video;
}

Tensor OpenSoraVae12::decode_frames(const Tensor& latent, int64_t frames) const {
  const at::NoGradGuard no_grad;
  check_input(latent.dim() == 4 && latent_frames(frames) == latent.size(1), "models.vae",
              "a latent that has not as many frames as a clip of " + std::to_string(frames) + " makes",
              "run prepare again");
  LayerRunner run(weights_);
  return decoded(unscaled(latent), frames, run);
}

Tensor OpenSoraVae12::pixels(const Tensor& unscaled, LayerRunner& run) const {
  return decode_tiles(unscaled, [&](const Tensor& tile, const Part&, const Part&) {
    return decoded(tile, frames_of(tile.size(1)), run);
  });
}

int64_t OpenSoraVae12::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [rows, columns] = largest_tile_pixels(height, width);
  const Tensor piece = on_meta({3, std::min(frames, config_.piece), rows, columns}, at::kByte);
  return counted(count, [&](LayerRunner& run) { encode_piece(piece, run); }) + tile_bytes(2 * c * f, h, w);
}

int64_t OpenSoraVae12::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile(h, w);
  const Tensor piece = on_meta({c, std::min(f, config_.latent_piece()), tile_h, tile_w});
  const int64_t shown = std::min(frames, config_.piece);
  return 4 * c * f * h * w + tile_bytes(3 * kStride * kStride * frames, h, w) +
         counted(count, [&](LayerRunner& run) { decode_piece(piece, shown, run, [](int64_t, const Tensor&) {}); });
}

namespace {

/// A buffer of the file, which counts more than what a config.json says.
void take_stored(const WeightSource& weights, const std::string& name, std::vector<double>& values) {
  if (!has_tensor(weights, name)) return;
  const Tensor stored = weights.read(name).to(at::kDouble).flatten().contiguous();
  check_input(stored.numel() == static_cast<int64_t>(values.size()), "models.vae",
              weights.file + ": tensor '" + name + "' has " + std::to_string(stored.numel()) +
                  " numbers, expected one for each of " + std::to_string(values.size()) + " latent channels",
              "fetch the file again");
  values.assign(stored.const_data_ptr<double>(), stored.const_data_ptr<double>() + stored.numel());
}

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(
      weights, {"spatial_vae.module.encoder.conv_in.weight", "temporal_vae.encoder.conv_in.conv.weight"}, "official");
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  check_groups(config, weights.file);
  stored.expect(parameters(config), "Open-Sora 1.2's autoencoder");
  take_stored(weights, stored.full("shift"), config.mean);
  take_stored(weights, stored.full("scale"), config.std);
  return std::make_unique<OpenSoraVae12>(std::move(config), stored.reader(), tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<OpenSoraVae12>(Config{}, random_weights(parameters({})), tiling);
}

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = quarter_of_tile<kStride>,
          .clip_cases = {"opensora_vae12"},
          .presets = {{"opensora1.2-vae", released}}};
}

}  // namespace tessera::models::opensora12_vae
