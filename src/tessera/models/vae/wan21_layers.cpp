#include "tessera/models/vae/wan21_layers.h"

namespace tessera::models::wan21 {

using Kind = Layer::Kind;

namespace {

void add_middle(std::vector<Layer>& layers, const std::string& side, int64_t channels) {
  layers.push_back({Kind::residual, side + ".middle.0", channels, channels});
  layers.push_back({Kind::attention, side + ".middle.1", channels, channels});
  layers.push_back({Kind::residual, side + ".middle.2", channels, channels});
}

}  // namespace

std::vector<Layer> encoder_layers(const Config& c) {
  std::vector<Layer> layers = {{Kind::conv, "encoder.conv1", 3, c.dim}};
  int64_t channels = c.dim, index = 0;
  const auto name = [&] { return "encoder.downsamples." + std::to_string(index++); };
  for (int64_t level = 0; level < c.levels(); ++level) {
    const int64_t width = c.dim * c.dim_mult[level];
    for (int64_t block = 0; block < c.num_res_blocks; ++block, channels = width)
      layers.push_back({Kind::residual, name(), channels, width});
    if (level + 1 < c.levels()) layers.push_back({Kind::down, name(), width, width, c.temporal_downsample[level]});
  }
  add_middle(layers, "encoder", channels);
  layers.push_back({Kind::head, "encoder.head", channels, 2 * c.z_dim});
  layers.push_back({Kind::pointwise, "conv1", 2 * c.z_dim, 2 * c.z_dim});
  return layers;
}

std::vector<Layer> decoder_layers(const Config& c) {
  int64_t channels = c.dim * c.dim_mult.back(), index = 0;
  std::vector<Layer> layers = {{Kind::pointwise, "conv2", c.z_dim, c.z_dim},
                               {Kind::conv, "decoder.conv1", c.z_dim, channels}};
  add_middle(layers, "decoder", channels);
  const auto name = [&] { return "decoder.upsamples." + std::to_string(index++); };
  for (int64_t level = c.levels() - 1; level >= 0; --level) {
    const int64_t width = c.dim * c.dim_mult[level];
    for (int64_t block = 0; block <= c.num_res_blocks; ++block, channels = width)
      layers.push_back({Kind::residual, name(), channels, width});
    if (level == 0) break;
    layers.push_back({Kind::up, name(), width, width / 2, c.temporal_downsample[level - 1]});
    channels = width / 2;
  }
  layers.push_back({Kind::head, "decoder.head", channels, 3});
  return layers;
}

namespace {

void add_parameters(const Layer& layer, std::vector<Parameter>& all) {
  const auto& [kind, name, in, out, temporal] = layer;
  const auto weight = [&](const std::string& site, std::vector<int64_t> shape) {
    const int64_t outputs = shape[0];
    all.push_back({name + site + ".weight", std::move(shape)});
    all.push_back({name + site + ".bias", {outputs}});
  };
  const auto norm = [&](const std::string& site, int64_t channels) {
    all.push_back({name + site + ".gamma", {channels, 1, 1, 1}});
  };
  switch (kind) {
    case Kind::conv:
      return weight("", {out, in, 3, 3, 3});
    case Kind::pointwise:
      return weight("", {out, in, 1, 1, 1});
    case Kind::residual:
      norm(".residual.0", in);
      weight(".residual.2", {out, in, 3, 3, 3});
      norm(".residual.3", out);
      weight(".residual.6", {out, out, 3, 3, 3});
      if (in != out) weight(".shortcut", {out, in, 1, 1, 1});
      return;
    case Kind::attention:
      all.push_back({name + ".norm.gamma", {in, 1, 1}});
      weight(".to_qkv", {3 * in, in, 1, 1});
      return weight(".proj", {in, in, 1, 1});
    case Kind::down:
      weight(".resample.1", {out, in, 3, 3});
      if (temporal) weight(".time_conv", {out, out, 3, 1, 1});
      return;
    case Kind::up:
      weight(".resample.1", {out, in, 3, 3});
      if (temporal) weight(".time_conv", {2 * in, in, 3, 1, 1});
      return;
    case Kind::head:
      norm(".0", in);
      return weight(".2", {out, in, 3, 3, 3});
  }
}

}  // namespace

std::vector<Parameter> parameters(const Config& c) {
  std::vector<Parameter> all;
  for (const Layer& layer : encoder_layers(c)) add_parameters(layer, all);
  for (const Layer& layer : decoder_layers(c)) add_parameters(layer, all);
  return all;
}

std::vector<Memory> memories(const Layer& layer) {
  switch (layer.kind) {
    case Kind::conv:
      return {{layer.name, layer.in, 2}};
    case Kind::residual:
      return {{layer.name + ".residual.2", layer.in, 2}, {layer.name + ".residual.6", layer.out, 2}};
    case Kind::head:
      return {{layer.name + ".2", layer.in, 2}};
    case Kind::up:
      if (layer.temporal) return {{layer.name + ".time_conv", layer.in, 2}};
      return {};
    case Kind::down:
      if (layer.temporal) return {{layer.name + ".time_conv", layer.out, 1}};
      return {};
    case Kind::pointwise:
    case Kind::attention:
      return {};
  }
  return {};
}

}  // namespace tessera::models::wan21
