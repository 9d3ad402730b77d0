#include "tessera/models/vae/opensora12_layers.h"

namespace tessera::models::opensora12_vae {

using Kind = Layer::Kind;

namespace {

const std::string kPictures = "spatial_vae.module.", kTime = "temporal_vae.";

void add_blocks(std::vector<Layer>& layers, const std::string& name, int64_t in, int64_t out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    layers.push_back({Kind::residual, name + std::to_string(i), i == 0 ? in : out, out});
}

void add_middle(std::vector<Layer>& layers, const std::string& name, int64_t width) {
  layers.push_back({Kind::residual, name + ".resnets.0", width, width});
  layers.push_back({Kind::attention, name + ".attentions.0", width, width});
  layers.push_back({Kind::residual, name + ".resnets.1", width, width});
}

}  // namespace

std::vector<Layer> picture_encoder(const Config& config) {
  const std::vector<int64_t>& widths = config.widths;
  const std::string name = kPictures + "encoder.";
  const int64_t moments = 2 * config.latent_channels;
  std::vector<Layer> layers = {{Kind::conv, name + "conv_in", 3, widths.front()}};
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string block = name + "down_blocks." + std::to_string(level);
    add_blocks(layers, block + ".resnets.", widths[level == 0 ? 0 : level - 1], widths[level], config.layers);
    if (level + 1 < widths.size())
      layers.push_back({Kind::down, block + ".downsamplers.0.conv", widths[level], widths[level]});
  }
  add_middle(layers, name + "mid_block", widths.back());
  layers.push_back({Kind::head, name + "conv_out", widths.back(), moments, name + "conv_norm_out"});
  layers.push_back({Kind::pointwise, kPictures + "quant_conv", moments, moments});
  return layers;
}

std::vector<Layer> picture_decoder(const Config& config) {
  const std::vector<int64_t> widths(config.widths.rbegin(), config.widths.rend());
  const std::string name = kPictures + "decoder.";
  std::vector<Layer> layers = {
      {Kind::pointwise, kPictures + "post_quant_conv", config.latent_channels, config.latent_channels},
      {Kind::conv, name + "conv_in", config.latent_channels, widths.front()}};
  add_middle(layers, name + "mid_block", widths.front());
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string block = name + "up_blocks." + std::to_string(level);
    add_blocks(layers, block + ".resnets.", widths[level == 0 ? 0 : level - 1], widths[level], config.layers + 1);
    if (level + 1 < widths.size())
      layers.push_back({Kind::up, block + ".upsamplers.0.conv", widths[level], widths[level]});
  }
  layers.push_back({Kind::head, name + "conv_out", widths.back(), 3, name + "conv_norm_out"});
  return layers;
}

std::vector<Layer> time_encoder(const Config& config) {
  const std::vector<int64_t>& widths = config.time_widths;
  const std::string name = kTime + "encoder.";
  const int64_t moments = 2 * config.latent_channels;
  std::vector<Layer> layers = {{Kind::conv, name + "conv_in.conv", config.latent_channels, config.time_first}};
  for (size_t level = 0; level < widths.size(); ++level) {
    add_blocks(layers, name + "block_res_blocks." + std::to_string(level) + ".",
               level == 0 ? config.time_first : widths[level - 1], widths[level], config.time_layers);
    if (level + 1 < widths.size() && config.halved[level])
      layers.push_back(
          {Kind::shrink, name + "conv_blocks." + std::to_string(level) + ".conv", widths[level], widths[level]});
  }
  add_blocks(layers, name + "res_blocks.", widths.back(), widths.back(), config.time_layers);
  layers.push_back({Kind::point_head, name + "conv2.conv", widths.back(), moments, name + "norm1"});
  layers.push_back({Kind::pointwise, kTime + "quant_conv.conv", moments, moments});
  return layers;
}

std::vector<Layer> time_decoder(const Config& config) {
  const std::vector<int64_t>& widths = config.time_widths;
  const std::string name = kTime + "decoder.";
  std::vector<Layer> layers = {
      {Kind::pointwise, kTime + "post_quant_conv.conv", config.latent_channels, config.latent_channels},
      {Kind::conv, name + "conv1.conv", config.latent_channels, widths.back()}};
  add_blocks(layers, name + "res_blocks.", widths.back(), widths.back(), config.time_layers);
  for (size_t level = widths.size(); level-- > 0;) {
    const int64_t from = widths[level + 1 == widths.size() ? level : level + 1];
    add_blocks(layers, name + "block_res_blocks." + std::to_string(level) + ".", from, widths[level],
               config.time_layers);
    if (level > 0 && config.halved[level - 1])
      layers.push_back(
          {Kind::stretch, name + "conv_blocks." + std::to_string(level - 1) + ".conv", widths[level], widths[level]});
  }
  layers.push_back({Kind::head, name + "conv_out.conv", widths.front(), config.latent_channels, name + "norm1"});
  return layers;
}

namespace {

/// Kernels of pictures have two sides, those over time three; there residual blocks and the first layer have no biases.
void add_parameters(const Layer& layer, bool time, std::vector<Parameter>& all) {
  const int64_t in = layer.in, out = layer.out;
  const auto kernel = [&](int64_t outputs, int64_t inputs, int64_t side) {
    std::vector<int64_t> shape = {outputs, inputs, side, side};
    if (time) shape.push_back(side);
    return shape;
  };
  const auto weight = [&](const std::string& site, std::vector<int64_t> shape, bool biased = true) {
    const int64_t outputs = shape[0];
    all.push_back({site + ".weight", std::move(shape)});
    if (biased) all.push_back({site + ".bias", {outputs}});
  };
  const std::string &name = layer.name, conv = time ? ".conv" : "";
  switch (layer.kind) {
    case Kind::pointwise:
      return weight(name, kernel(out, in, 1));
    case Kind::conv:
      return weight(name, kernel(out, in, 3), name != kTime + "encoder.conv_in.conv");
    case Kind::down:
    case Kind::up:
    case Kind::shrink:
      return weight(name, kernel(out, in, 3));
    case Kind::stretch:
      return weight(name, kernel(2 * out, in, 3));
    case Kind::residual:
      weight(name + ".norm1", {in});
      weight(name + ".conv1" + conv, kernel(out, in, 3), !time);
      weight(name + ".norm2", {out});
      weight(name + ".conv2" + conv, kernel(out, out, 3), !time);
      if (in != out) weight(name + (time ? ".conv3.conv" : ".conv_shortcut"), kernel(out, in, 1), !time);
      return;
    case Kind::attention:
      for (const char* site : {".to_q", ".to_k", ".to_v", ".to_out.0"}) weight(name + site, {in, in});
      return weight(name + ".group_norm", {in});
    case Kind::head:
    case Kind::point_head:
      weight(layer.norm, {in});
      return weight(name, kernel(out, in, layer.kind == Kind::head ? 3 : 1));
  }
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  std::vector<Parameter> all;
  for (const auto& layers : {picture_encoder(config), picture_decoder(config)})
    for (const Layer& layer : layers) add_parameters(layer, false, all);
  for (const auto& layers : {time_encoder(config), time_decoder(config)})
    for (const Layer& layer : layers) add_parameters(layer, true, all);
  return all;
}

}  // namespace tessera::models::opensora12_vae
