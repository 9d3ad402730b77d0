#include "tessera/models/vae/hunyuan15.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::hunyuan15_vae {

namespace {

constexpr int64_t kColours = 3;
const ConvForm kCausal = {.border = {.repeats = true}};

/// The factor of each channel of a norm over them.
Tensor factor(LayerRunner& run, const std::string& site) {
  const Tensor gamma = run.weight(site + ".gamma").flatten();
  return gamma * std::sqrt(static_cast<double>(gamma.numel()));
}

/// Norm, SiLU, conv; written over `over` where it is given.
Tensor normed_conv(LayerRunner& run, const std::string& norm, const std::string& conv, const Tensor& x,
                   const Tensor& over = {}) {
  run.now().stream(5 * x.numel(), 3);
  return run.conv(conv, {.map = x, .channel_norm = factor(run, norm)}, kCausal, over);
}

ParameterList& add_gamma(ParameterList& list, const std::string& site, int64_t channels) {
  return list.one(site + ".gamma", {channels, 1, 1, 1});
}

Layer residual(const std::string& name, int64_t in, int64_t out) {
  const std::string norm1 = name + ".norm1", norm2 = name + ".norm2", conv1 = name + ".conv1.conv",
                    conv2 = name + ".conv2.conv", shortcut = in == out ? "" : name + ".nin_shortcut";
  ParameterList parameters;
  add_gamma(parameters, norm1, in).kernel({conv1, in, out});
  add_gamma(parameters, norm2, out).kernel({conv2, out, out});
  if (in != out) parameters.kernel({shortcut, in, out, {1, 1, 1}});
  return {parameters.all, [=](LayerRunner& run, const Tensor& x) {
            Tensor y = normed_conv(run, norm1, conv1, x);
            y = normed_conv(run, norm2, conv2, y, y);
            return run.add_input(y, x, shortcut);
          }};
}

Layer middle_attention(const std::string& name, int64_t channels) {
  ParameterList norm;
  add_gamma(norm, name + ".norm", channels);
  const auto normed = [site = name + ".norm"](LayerRunner& run, const Tensor& x) {
    run.now().stream(5 * x.numel(), 3);
    return channel_normed(x, factor(run, site));
  };
  return attention(norm, normed, {name + ".q", name + ".k", name + ".v", name + ".proj_out"}, channels, {1, 1, 1},
                   mix_seen);
}

void add_middle(std::vector<Layer>& layers, const std::string& half, int64_t channels) {
  layers.push_back(residual(half + ".mid.block_1", channels, channels));
  layers.push_back(middle_attention(half + ".mid.attn_1", channels));
  layers.push_back(residual(half + ".mid.block_2", channels, channels));
}

/// Squares of 2 x 2 cells, of each of `t` frames in turn, as channels: row before column before channel, [t, H, W, C] ->
/// [H/2, W/2, t * 4 * C].
Tensor packed(const Tensor& frames) {
  const int64_t t = frames.size(0), h = frames.size(1) / 2, w = frames.size(2) / 2, c = frames.size(3);
  return frames.view({t, h, 2, w, 2, c}).permute({1, 3, 0, 2, 4, 5}).reshape({h, w, t * 4 * c});
}

/// And back, [H, W, t * 4 * C] -> [t, 2H, 2W, C].
Tensor unpacked(const Tensor& frame, int64_t t) {
  const int64_t h = frame.size(0), w = frame.size(1), c = frame.size(2) / (4 * t);
  return frame.view({h, w, t, 2, 2, c}).permute({2, 0, 3, 1, 4, 5}).reshape({t, 2 * h, 2 * w, c});
}

/// Means of neighbouring channels, so that `channels` are left.
Tensor means(const Tensor& x, int64_t channels) { return x.unflatten(-1, {channels, -1}).mean(-1); }

/// Each channel again beside itself, so that they are `channels`.
Tensor repeated(const Tensor& x, int64_t channels) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.push_back(channels / x.size(-1));
  return x.unsqueeze(-1).expand(sizes).flatten(-2);
}

/// Half the height and width, and with `temporal` half of all frames but the first.
Layer down(const std::string& site, int64_t in, int64_t out, bool temporal) {
  const int64_t time = temporal ? 2 : 1;
  const Kernel kernel{site, in, out / (4 * time)};
  return {ParameterList().kernel(kernel).all, [=](LayerRunner& run, const Tensor& x) {
            const Tensor y = run.conv(site, {x}, kCausal);
            run.now().change(x.numel() + y.numel());
            const int64_t frames = temporal ? 1 + (x.size(0) - 1) / 2 : x.size(0);
            Tensor result = at::empty({frames, x.size(1) / 2, x.size(2) / 2, out}, x.options());
            for (int64_t i = 0; i < (x.is_meta() ? std::min<int64_t>(frames, 2) : frames); ++i) {
              const bool alone = !temporal || i == 0;
              const int64_t from = alone ? i : 2 * i - 1, count = alone ? 1 : 2;
              const Tensor to = result.select(0, i);
              const Tensor own = packed(y.narrow(0, from, count));
              // the first frame has half the channels, which it holds twice
              for (int64_t c = 0; c < out; c += own.size(2)) to.narrow(2, c, own.size(2)).copy_(own);
              to.add_(means(packed(x.narrow(0, from, count)), out));
            }
            return result;
          }};
}

/// Twice the height and width, and with `temporal` twice all frames but the first.
Layer up(const std::string& site, int64_t in, int64_t out, bool temporal) {
  const int64_t time = temporal ? 2 : 1, all = 4 * time * out;
  return {ParameterList().kernel({site, in, all}).all, [=](LayerRunner& run, const Tensor& x) {
            const Tensor y = run.conv(site, {x}, kCausal);
            run.now().change(x.numel() + y.numel());
            const int64_t frames = temporal ? 2 * x.size(0) - 1 : x.size(0);
            Tensor result = at::empty({frames, 2 * x.size(1), 2 * x.size(2), out}, x.options());
            for (int64_t i = 0; i < (x.is_meta() ? std::min<int64_t>(x.size(0), 2) : x.size(0)); ++i) {
              const bool alone = !temporal || i == 0;
              const Tensor to = result.narrow(0, alone ? i : 2 * i - 1, alone ? 1 : 2);
              // the first frame keeps the first half of what would be two
              to.copy_(unpacked(y.select(0, i), to.size(0)).narrow(3, 0, out));
              const Tensor shortcut = temporal ? repeated(unpacked(x.select(0, i), to.size(0)), out)
                                               : unpacked(repeated(x.select(0, i), all), 1);
              to.add_(shortcut);
            }
            return result;
          }};
}

/// Norm, SiLU, conv, and what went in as means of neighbouring channels where `shortcut` says so.
Layer head(const std::string& half, int64_t in, int64_t out, bool shortcut) {
  const std::string norm = half + ".norm_out", conv = half + ".conv_out.conv";
  ParameterList parameters;
  add_gamma(parameters, norm, in).kernel({conv, in, out});
  return {parameters.all, [=](LayerRunner& run, const Tensor& x) {
            Tensor y = normed_conv(run, norm, conv, x);
            if (!shortcut) return y;
            run.now().add(y.numel());
            return y.add_(means(x, out));
          }};
}

}  // namespace

/// [3, ..] to mean and log variance [2 * latent_channels, ..].
std::vector<Layer> encoder_layers(const Config& config) {
  const auto& widths = config.widths;
  const int64_t in_space = config.halvings(), in_time = config.time_halvings();
  std::vector<Layer> layers = {conv({"encoder.conv_in.conv", kColours, widths.front()}, kCausal)};
  int64_t channels = widths.front();
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "encoder.down." + std::to_string(level);
    const auto number = static_cast<int64_t>(level);
    for (int64_t i = 0; i < config.layers; ++i, channels = widths[level])
      layers.push_back(residual(name + ".block." + std::to_string(i), channels, widths[level]));
    if (number >= in_space) continue;
    layers.push_back(down(name + ".downsample.conv.conv", channels, widths[level + 1], number >= in_space - in_time));
    channels = widths[level + 1];
  }
  add_middle(layers, "encoder", channels);
  layers.push_back(head("encoder", channels, 2 * config.latent_channels, /*shortcut=*/true));
  return layers;
}

/// [latent_channels, ..] to [3, ..].
std::vector<Layer> decoder_layers(const Config& config) {
  const std::vector<int64_t> widths(config.widths.rbegin(), config.widths.rend());
  const std::string first = "decoder.conv_in.conv";
  int64_t channels = widths.front();
  std::vector<Layer> layers = {
      {ParameterList().kernel({first, config.latent_channels, channels}).all, [=](LayerRunner& run, const Tensor& z) {
         Tensor y = run.conv(first, {z}, kCausal);
         run.now().add(y.numel());
         return y.add_(repeated(z, channels));
       }}};
  add_middle(layers, "decoder", channels);
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "decoder.up." + std::to_string(level);
    const auto number = static_cast<int64_t>(level);
    for (int64_t i = 0; i <= config.layers; ++i, channels = widths[level])
      layers.push_back(residual(name + ".block." + std::to_string(i), channels, widths[level]));
    if (number >= config.halvings()) continue;
    layers.push_back(up(name + ".upsample.conv.conv", channels, widths[level + 1], number < config.time_halvings()));
    channels = widths[level + 1];
  }
  layers.push_back(head("decoder", channels, kColours, /*shortcut=*/false));
  return layers;
}

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_layers(config), decoder_layers(config)});
}

Hunyuan15Vae::Hunyuan15Vae(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "hunyuan15-vae",
                .settings = {at::tensor({config.stride, config.time_stride}, at::kLong)},
                .scaling = {.mean = at::full({config.latent_channels, 1}, config.shift_factor, at::kFloat),
                            .std = at::full({config.latent_channels, 1}, 1 / config.scaling_factor, at::kFloat),
                            .times =
                                [factor = config.scaling_factor] {
                                  return at::full({1, 1}, factor, at::kFloat);
                                }},
                .parameters = hunyuan15_vae::parameters(config),
                .read = std::move(read),
                .cell = config.stride,
                .tiling = tiling,
                .usual_tiles = "256 pixels that share 32 are usual"}),
      config_(std::move(config)),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)) {}

std::array<int64_t, 4> Hunyuan15Vae::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  return causal_latent(config_.latent_channels, config_.time_stride, config_.stride, {frames, height, width});
}

Tensor Hunyuan15Vae::moments(const Tensor& pixels, LayerRunner& run) const {
  latent_shape(pixels.size(1), pixels.size(2), pixels.size(3));  // refuses what does not come back
  return encode_tiles(pixels,
                      [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(encoder_, tile)); });
}

Tensor Hunyuan15Vae::pixels(const Tensor& unscaled, LayerRunner& run) const {
  return decode_tiles(unscaled,
                      [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(decoder_, tile)); });
}

int64_t Hunyuan15Vae::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile_pixels(height, width);
  return pass_bytes(encoder_, on_meta({kColours, frames, tile_h, tile_w}, at::kByte), count) +
         stitching_bytes(2 * c * f, h, w);
}

int64_t Hunyuan15Vae::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile(h, w);
  return 4 * c * f * h * w + pass_bytes(decoder_, on_meta({c, f, tile_h, tile_w}), count) +
         stitching_bytes(kColours * frames * config_.stride * config_.stride, h, w);
}

namespace {

std::unique_ptr<VideoVae> make(const std::string& config_text, const std::string& config_file,
                               const WeightSource& weights, const Tiling& tiling) {
  const StoredWeights stored(weights, {"encoder.conv_in.conv.weight", "encoder.mid.attn_1.norm.gamma"}, "official",
                             diffusers_names());
  Config config = config_of_weights(stored.shapes(), weights.file);
  if (!config_text.empty()) check_config(config_text, config_file, config);
  stored.expect(parameters(config), "HunyuanVideo-1.5's autoencoder");
  return std::make_unique<Hunyuan15Vae>(std::move(config), stored.reader(), tiling);
}

std::unique_ptr<VideoVae> released(const Tiling& tiling) {
  return std::make_unique<Hunyuan15Vae>(Config{}, random_weights(parameters({})), tiling);
}

/// As the official pipelines have it: 32 pixels of tiles of 256 and of 128.
int64_t usual_overlap(int64_t tile) { return tile > 32 ? std::max<int64_t>(32, tile / 128 * 16) : 16; }

}  // namespace

AutoencoderMake autoencoder() {
  return {.weights = {weight_form()},
          .make = make,
          .usual_overlap = usual_overlap,
          .clip_cases = {"hunyuan15_vae", "hunyuan15_vae_tiled"},
          .presets = {{"hunyuan15-vae", released}}};
}

}  // namespace tessera::models::hunyuan15_vae
