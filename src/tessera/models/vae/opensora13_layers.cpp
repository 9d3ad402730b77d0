#include "tessera/models/vae/opensora13_layers.h"

namespace tessera::models::opensora13_vae {

using Kind = Layer::Kind;

namespace {

void add_blocks(std::vector<Layer>& layers, const std::string& name, int64_t in, int64_t out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    layers.push_back({Kind::residual, name + ".block." + std::to_string(i), i == 0 ? in : out, out});
}

void add_middle(std::vector<Layer>& layers, const std::string& name, int64_t width) {
  layers.push_back({Kind::residual, name + ".block_1", width, width});
  layers.push_back({Kind::attention, name + ".attn_1", width, width});
  layers.push_back({Kind::residual, name + ".block_2", width, width});
}

}  // namespace

std::vector<Layer> encoder_layers(const Config& config) {
  const std::vector<int64_t>& widths = config.widths;
  std::vector<Layer> layers = {{Kind::conv, "encoder.conv_in.conv", 3, config.first}};
  for (size_t level = 0; level < widths.size(); ++level) {
    const std::string name = "encoder.down." + std::to_string(level);
    const int64_t width = widths[level];
    add_blocks(layers, name, level == 0 ? config.first : widths[level - 1], width, config.layers);
    if (level == 0) layers.push_back({Kind::down, name + ".downsample.conv", width, width});
    if (level > 0 && level + 1 < widths.size())
      layers.push_back({Kind::down_time, name + ".downsample.conv.conv", width, width});
  }
  add_middle(layers, "encoder.mid", widths.back());
  layers.push_back(
      {Kind::head, "encoder.conv_out.conv", widths.back(), 2 * config.latent_channels, "encoder.norm_out"});
  return layers;
}

std::vector<Layer> decoder_layers(const Config& config) {
  const std::vector<int64_t>& widths = config.decoder_widths;
  std::vector<Layer> layers = {{Kind::conv, "decoder.conv_in.conv", config.latent_channels, widths.back()}};
  add_middle(layers, "decoder.mid", widths.back());
  for (size_t level = widths.size(); level-- > 0;) {
    const std::string name = "decoder.up." + std::to_string(level);
    const int64_t width = widths[level];
    add_blocks(layers, name, widths[level + 1 == widths.size() ? level : level + 1], width, config.decoder_layers + 1);
    if (level > 1) layers.push_back({Kind::up_time, name + ".upsample.conv3d", width, width});
    if (level == 1) layers.push_back({Kind::up, name + ".upsample.conv", width, width});
  }
  layers.push_back({Kind::head, "decoder.conv_out", widths.front(), 3, "decoder.norm_out"});
  return layers;
}

namespace {

void add_parameters(const Layer& layer, std::vector<Parameter>& all) {
  const int64_t in = layer.in, out = layer.out;
  const auto both = [&](const std::string& site, std::vector<int64_t> shape) {
    const int64_t outputs = shape[0];
    all.push_back({site + ".weight", std::move(shape)});
    all.push_back({site + ".bias", {outputs}});
  };
  const std::string& name = layer.name;
  switch (layer.kind) {
    case Kind::conv:
    case Kind::down_time:
      return both(name, {out, in, 3, 3, 3});
    case Kind::down:
    case Kind::up:
      return both(name, {out, in, 3, 3});
    case Kind::residual:
      both(name + ".norm1", {in});
      both(name + ".conv1.conv", {out, in, 3, 3, 3});
      both(name + ".norm2", {out});
      both(name + ".conv2.conv", {out, out, 3, 3, 3});
      if (in != out) both(name + ".nin_shortcut.conv", {out, in, 1, 1, 1});
      return;
    case Kind::attention:
      for (const char* site : {".q.conv", ".k.conv", ".v.conv", ".proj_out.conv"}) both(name + site, {in, in, 1, 1, 1});
      return both(name + ".norm", {in});
    case Kind::up_time:
      for (const char* number : {"1", "2"}) {
        both(name + ".conv" + number + ".conv", {out, in, 3, 3, 3});
        both(name + ".norm" + number, {out});
      }
      return;
    case Kind::head:
      both(layer.norm, {in});
      return both(name, {out, in, 3, 3, 3});
  }
}

}  // namespace

std::vector<Parameter> parameters(const Config& config) {
  std::vector<Parameter> all;
  for (const Layer& layer : encoder_layers(config)) add_parameters(layer, all);
  for (const Layer& layer : decoder_layers(config)) add_parameters(layer, all);
  return all;
}

}  // namespace tessera::models::opensora13_vae
