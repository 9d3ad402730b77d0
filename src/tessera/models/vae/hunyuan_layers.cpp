#include "tessera/models/vae/hunyuan_layers.h"

namespace tessera::models::hunyuan_vae {

using Kind = Layer::Kind;

namespace {

void add_blocks(std::vector<Layer>& layers, const std::string& name, int64_t in, int64_t out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    layers.push_back({Kind::residual, name + ".resnets." + std::to_string(i), i == 0 ? in : out, out});
}

void add_middle(std::vector<Layer>& layers, const std::string& name, int64_t width) {
  layers.push_back({Kind::residual, name + ".resnets.0", width, width});
  layers.push_back({Kind::attention, name + ".attentions.0", width, width});
  layers.push_back({Kind::residual, name + ".resnets.1", width, width});
}

}  // namespace

std::vector<Layer> encoder_layers(const Config& config) {
  const std::vector<int64_t>& widths = config.widths;
  std::vector<Layer> layers = {{Kind::conv, "encoder.conv_in", 3, widths.front()}};
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "encoder.down_blocks." + std::to_string(level);
    add_blocks(layers, name, widths[level == 0 ? 0 : level - 1], widths[level], config.layers);
    if (level + 1 < widths.size())
      layers.push_back({Kind::down, name + ".downsamplers.0.conv", widths[level], widths[level], level > 0});
  }
  add_middle(layers, "encoder.mid_block", widths.back());
  layers.push_back({Kind::head, "encoder", widths.back(), 2 * config.latent_channels});
  layers.push_back({Kind::pointwise, "quant_conv", 2 * config.latent_channels, 2 * config.latent_channels});
  return layers;
}

std::vector<Layer> decoder_layers(const Config& config) {
  const std::vector<int64_t> widths(config.widths.rbegin(), config.widths.rend());
  std::vector<Layer> layers = {{Kind::pointwise, "post_quant_conv", config.latent_channels, config.latent_channels},
                               {Kind::conv, "decoder.conv_in", config.latent_channels, widths.front()}};
  add_middle(layers, "decoder.mid_block", widths.front());
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "decoder.up_blocks." + std::to_string(level);
    add_blocks(layers, name, widths[level == 0 ? 0 : level - 1], widths[level], config.layers + 1);
    if (level + 1 < widths.size())
      layers.push_back({Kind::up, name + ".upsamplers.0.conv", widths[level], widths[level], level > 0});
  }
  layers.push_back({Kind::head, "decoder", widths.back(), 3});
  return layers;
}

namespace {

void add_parameters(const Layer& layer, std::vector<Parameter>& all) {
  const int64_t in = layer.in, out = layer.out;
  const auto both = [&](const std::string& site, std::vector<int64_t> shape) {
    const int64_t outputs = shape[0];
    all.push_back({layer.name + site + ".weight", std::move(shape)});
    all.push_back({layer.name + site + ".bias", {outputs}});
  };
  switch (layer.kind) {
    case Kind::pointwise:
      return both("", {out, in, 1, 1, 1});
    case Kind::conv:
    case Kind::down:
    case Kind::up:
      return both(".conv", {out, in, 3, 3, 3});
    case Kind::residual:
      both(".norm1", {in});
      both(".conv1.conv", {out, in, 3, 3, 3});
      both(".norm2", {out});
      both(".conv2.conv", {out, out, 3, 3, 3});
      if (in != out) both(".conv_shortcut.conv", {out, in, 1, 1, 1});
      return;
    case Kind::attention:
      for (const char* site : {".to_q", ".to_k", ".to_v", ".to_out.0"}) both(site, {in, in});
      return both(".group_norm", {in});
    case Kind::head:
      both(".conv_norm_out", {in});
      return both(".conv_out.conv", {out, in, 3, 3, 3});
  }
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  std::vector<Parameter> all;
  for (const Layer& layer : encoder_layers(config)) add_parameters(layer, all);
  for (const Layer& layer : decoder_layers(config)) add_parameters(layer, all);
  return all;
}

}  // namespace tessera::models::hunyuan_vae
