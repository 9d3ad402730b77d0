#include "tessera/models/vae/hunyuan.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "tessera/base/check.h"

namespace tessera::models::hunyuan_vae {

namespace {

/// The parts of a KlForm's lists.
class KlLayers {
 public:
  explicit KlLayers(const KlForm& form)
      : form_(form),
        same_{.border = form.in_time ? Border{.repeats = true} : Border{.front = 0}},
        halved_{.border = form.in_time ? Border{.repeats = true} : Border{.front = 0, .before = 0}, .stride = 2},
        three_(form.in_time ? 3 : 2, 3),
        one_(three_.size(), 1) {}

  void conv(const std::string& name, int64_t in, int64_t out) {
    all.push_back(models::conv(kernel(name, in, out), same_));
  }
  void pointwise(const std::string& name, int64_t channels) {
    all.push_back(models::pointwise({form_.prefix + name, channels, channels, one_}));
  }
  void blocks(const std::string& name, int64_t in, int64_t out, int64_t count) {
    for (int64_t i = 0; i < count; ++i, in = out) block(name + ".resnets." + std::to_string(i), in, out);
  }
  void middle(const std::string& name, int64_t width) {
    block(name + ".resnets.0", width, width);
    const std::string at = form_.prefix + name + ".attentions.0";
    all.push_back(attention(form_.norm, at + ".group_norm",
                            {at + ".to_q", at + ".to_k", at + ".to_v", at + ".to_out.0"}, width, {},
                            form_.in_time ? mix_seen : mix_all));
    block(name + ".resnets.1", width, width);
  }
  void down(const std::string& name, int64_t width, bool temporal) {
    ConvForm form = halved_;
    if (temporal) form.time_stride = 2;
    all.push_back(models::conv(kernel(name + ".downsamplers.0.conv", width, width), form));
  }
  void up(const std::string& name, int64_t width, bool temporal) {
    all.push_back(enlarged(kernel(name + ".upsamplers.0.conv", width, width), same_,
                           temporal ? MapInput::Time::doubled_after_first : MapInput::Time::kept));
  }
  void head(const std::string& half, int64_t in, int64_t out) {
    all.push_back(
        models::head(form_.norm, form_.prefix + half + ".conv_norm_out", kernel(half + ".conv_out", in, out), same_));
  }

  std::vector<Layer> all;

 private:
  Kernel kernel(const std::string& name, int64_t in, int64_t out) const {
    return {form_.prefix + name + form_.conv, in, out, three_};
  }
  void block(const std::string& name, int64_t in, int64_t out) {
    const std::string at = form_.prefix + name;
    all.push_back(residual(form_.norm, at + ".norm1", kernel(name + ".conv1", in, out), at + ".norm2",
                           kernel(name + ".conv2", out, out), {at + ".conv_shortcut" + form_.conv, in, out, one_},
                           same_));
  }

  /// Of a picture.
  static double mix_all(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to, int64_t cells) {
    if (q.is_meta())
      at::empty(to.sizes(), to.options());
    else
      to.copy_(at::scaled_dot_product_attention(q, k, v));
    return static_cast<double>(q.size(2)) * static_cast<double>(cells);
  }

  const KlForm& form_;
  const ConvForm same_, halved_;
  const std::vector<int64_t> three_, one_;  // sides of kernels
};

KlForm form_of(const Config& config) {
  return {.prefix = {},
          .conv = ".conv",
          .widths = config.widths,
          .layers = config.layers,
          .latent_channels = config.latent_channels,
          .norm = {config.groups, 1e-6},
          .in_time = true};
}

}  // namespace

std::vector<Layer> kl_encoder(const KlForm& form) {
  const std::vector<int64_t>& widths = form.widths;
  const int64_t moments = 2 * form.latent_channels;
  KlLayers layers(form);
  layers.conv("encoder.conv_in", 3, widths.front());
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "encoder.down_blocks." + std::to_string(level);
    layers.blocks(name, widths[level == 0 ? 0 : level - 1], widths[level], form.layers);
    if (level + 1 < widths.size()) layers.down(name, widths[level], form.in_time && level > 0);
  }
  layers.middle("encoder.mid_block", widths.back());
  layers.head("encoder", widths.back(), moments);
  layers.pointwise("quant_conv", moments);
  return layers.all;
}

std::vector<Layer> kl_decoder(const KlForm& form) {
  const std::vector<int64_t> widths(form.widths.rbegin(), form.widths.rend());
  KlLayers layers(form);
  layers.pointwise("post_quant_conv", form.latent_channels);
  layers.conv("decoder.conv_in", form.latent_channels, widths.front());
  layers.middle("decoder.mid_block", widths.front());
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "decoder.up_blocks." + std::to_string(level);
    layers.blocks(name, widths[level == 0 ? 0 : level - 1], widths[level], form.layers + 1);
    if (level + 1 < widths.size()) layers.up(name, widths[level], form.in_time && level > 0);
  }
  layers.head("decoder", widths.back(), 3);
  return layers.all;
}

std::vector<Layer> encoder_layers(const Config& config) { return kl_encoder(form_of(config)); }
std::vector<Layer> decoder_layers(const Config& config) { return kl_decoder(form_of(config)); }

std::vector<Parameter> parameters(const Config& config) {
  return parameters_of({encoder_layers(config), decoder_layers(config)});
}

HunyuanVae::HunyuanVae(Config config, ReadWeight read, const Tiling& tiling)
    : VideoVae({.name = "hunyuan-vae",
                .settings = {at::full({1}, config.groups, at::kLong)},
                .scaling = {.mean = at::full({config.latent_channels, 1}, config.shift_factor, at::kFloat),
                            .std = at::full({config.latent_channels, 1}, 1 / config.scaling_factor, at::kFloat),
                            .times =
                                [factor = config.scaling_factor] {
                                  return at::full({1, 1}, factor, at::kFloat);
                                }},
                .parameters = hunyuan_vae::parameters(config),
                .read = std::move(read),
                .cell = kStride,
                .tiling = tiling,
                .cell_frames = kTimeStride,
                .usual_frames = "64 frames that share 16 are usual"}),
      config_(std::move(config)),
      encoder_(encoder_layers(config_)),
      decoder_(decoder_layers(config_)) {}

std::array<int64_t, 4> HunyuanVae::latent_shape(int64_t frames, int64_t height, int64_t width) const {
  return causal_latent(config_.latent_channels, kTimeStride, kStride, {frames, height, width});
}

Tensor HunyuanVae::moments(const Tensor& pixels, LayerRunner& run) const {
  const int64_t groups = latent_shape(pixels.size(1), pixels.size(2), pixels.size(3))[1] - 1;
  const auto of_frames = [&](const Tensor& clip) {
    return encode_tiles(clip,
                        [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(encoder_, tile)); });
  };
  if (!cut_in_time(groups)) return of_frames(pixels);
  return stitch_frames(time_tiles_, groups, 1, [&](const Part& part) {
    return of_frames(pixels.narrow(1, part.begin * kTimeStride, 1 + part.length * kTimeStride));
  });
}

Tensor HunyuanVae::pixels(const Tensor& unscaled, LayerRunner& run) const {
  const int64_t groups = unscaled.size(1) - 1;
  const auto of_frames = [&](const Tensor& latent) {
    return decode_tiles(latent,
                        [&](const Tensor& tile, const Part&, const Part&) { return on_host(run.run(decoder_, tile)); });
  };
  if (!cut_in_time(groups)) return of_frames(unscaled);
  return stitch_frames(time_tiles_, groups, kTimeStride,
                       [&](const Part& part) { return of_frames(unscaled.narrow(1, part.begin, 1 + part.length)); });
}

int64_t HunyuanVae::stitching(int64_t f, int64_t h, int64_t w, int64_t first, int64_t later) const {
  const int64_t bytes = stitching_bytes(first + (tile_frames(f) - 1) * later, h, w);
  return cut_in_time(f - 1) ? bytes + 4 * h * w * (first + (f - 1) * later + time_tiles_.shared() * later) : bytes;
}

int64_t HunyuanVae::encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile_pixels(height, width);
  const Tensor clip = on_meta({3, 1 + (tile_frames(f) - 1) * kTimeStride, tile_h, tile_w}, at::kByte);
  return pass_bytes(encoder_, clip, count) + stitching(f, h, w, 2 * c, 2 * c);
}

int64_t HunyuanVae::decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const {
  const auto [c, f, h, w] = latent_shape(frames, height, width);
  const auto [tile_h, tile_w] = largest_tile(h, w);
  const int64_t cell = 3 * kStride * kStride;
  return 4 * c * f * h * w + pass_bytes(decoder_, on_meta({c, tile_frames(f), tile_h, tile_w}), count) +
         stitching(f, h, w, cell, kTimeStride * cell);
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
          .usual_overlap = quarter_of_tile<kStride>,
          .clip_cases = {"hunyuan_vae", "hunyuan_vae_tiled", "opensora_vae_tiling"},
          .presets = {{"hunyuan-vae", released}}};
}

}  // namespace tessera::models::hunyuan_vae
