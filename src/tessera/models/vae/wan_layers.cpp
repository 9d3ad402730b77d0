#include "tessera/models/vae/wan_layers.h"

namespace tessera::models::wan_vae {

using Kind = Layer::Kind;

namespace {

constexpr int64_t kColours = 3;

void add_middle(std::vector<Layer>& layers, const std::string& side, int64_t channels) {
  layers.push_back({Kind::residual, side + ".middle.0", channels, channels});
  layers.push_back({Kind::attention, side + ".middle.1", channels, channels});
  layers.push_back({Kind::residual, side + ".middle.2", channels, channels});
}

/// Names of the layers of one side: a single list in Wan 2.1, a list for each level in Wan 2.2.
class Names {
 public:
  Names(std::string list, bool nested) : list_(std::move(list)), nested_(nested) {}
  void begin_level() {
    if (nested_) ++level_, index_ = 0;
  }
  std::string next() {
    const std::string name = list_.substr(list_.find('.'));  // ".downsamples"
    return list_ + (nested_ ? "." + std::to_string(level_) + name : "") + "." + std::to_string(index_++);
  }

 private:
  const std::string list_;
  const bool nested_;
  int64_t level_ = -1, index_ = 0;
};

}  // namespace

std::vector<Layer> encoder_layers(const Config& c) {
  const int64_t colours = kColours * c.patch * c.patch;
  std::vector<Layer> layers;
  if (c.patch > 1) layers.push_back({Kind::patchify, "", kColours, colours, false, c.patch});
  layers.push_back({Kind::conv, "encoder.conv1", colours, c.dim});
  int64_t channels = c.dim;
  Names names("encoder.downsamples", c.residual);
  for (int64_t level = 0; level < c.levels(); ++level) {
    const int64_t width = c.dim * c.dim_mult[level];
    const bool halves = level + 1 < c.levels(), in_time = halves && c.temporal_downsample[level];
    names.begin_level();
    if (c.residual) layers.push_back({Kind::average, "", channels, width, in_time, halves ? 2 : 1});
    for (int64_t block = 0; block < c.num_res_blocks; ++block, channels = width)
      layers.push_back({Kind::residual, names.next(), channels, width});
    if (halves) layers.push_back({Kind::down, names.next(), width, width, in_time});
    if (c.residual) layers.push_back({Kind::join, "", width, width});
  }
  add_middle(layers, "encoder", channels);
  layers.push_back({Kind::head, "encoder.head", channels, 2 * c.z_dim});
  layers.push_back({Kind::pointwise, "conv1", 2 * c.z_dim, 2 * c.z_dim});
  return layers;
}

std::vector<Layer> decoder_layers(const Config& c) {
  int64_t channels = c.decoder_dim * c.dim_mult.back();
  std::vector<Layer> layers = {{Kind::pointwise, "conv2", c.z_dim, c.z_dim},
                               {Kind::conv, "decoder.conv1", c.z_dim, channels}};
  add_middle(layers, "decoder", channels);
  Names names("decoder.upsamples", c.residual);
  for (int64_t level = c.levels() - 1; level >= 0; --level) {
    const int64_t width = c.decoder_dim * c.dim_mult[level], before = channels;
    const bool doubles = level > 0, in_time = doubles && c.temporal_downsample[level - 1];
    names.begin_level();
    if (c.residual && doubles) layers.push_back({Kind::keep, "", channels, channels});
    for (int64_t block = 0; block <= c.num_res_blocks; ++block, channels = width)
      layers.push_back({Kind::residual, names.next(), channels, width});
    if (!doubles) break;
    channels = c.residual ? width : width / 2;
    layers.push_back({Kind::up, names.next(), width, channels, in_time});
    if (c.residual) layers.push_back({Kind::repeat, "", before, width, in_time, 2});
  }
  const int64_t colours = kColours * c.patch * c.patch;
  layers.push_back({Kind::head, "decoder.head", channels, colours});
  if (c.patch > 1) layers.push_back({Kind::unpatchify, "", colours, kColours, false, c.patch});
  return layers;
}

namespace {

void add_parameters(const Layer& layer, std::vector<Parameter>& all) {
  const std::string& name = layer.name;
  const int64_t in = layer.in, out = layer.out;
  const auto weight = [&](const std::string& site, std::vector<int64_t> shape) {
    const int64_t outputs = shape[0];
    all.push_back({name + site + ".weight", std::move(shape)});
    all.push_back({name + site + ".bias", {outputs}});
  };
  const auto norm = [&](const std::string& site, int64_t channels) {
    all.push_back({name + site + ".gamma", {channels, 1, 1, 1}});
  };
  switch (layer.kind) {
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
      if (layer.temporal) weight(".time_conv", {out, out, 3, 1, 1});
      return;
    case Kind::up:
      weight(".resample.1", {out, in, 3, 3});
      if (layer.temporal) weight(".time_conv", {2 * in, in, 3, 1, 1});
      return;
    case Kind::head:
      norm(".0", in);
      return weight(".2", {out, in, 3, 3, 3});
    case Kind::patchify:
    case Kind::unpatchify:
    case Kind::average:
    case Kind::join:
    case Kind::keep:
    case Kind::repeat:
      return;
  }
}

}  // namespace

std::vector<Parameter> parameters(const Config& c) {
  std::vector<Parameter> all;
  for (const Layer& layer : encoder_layers(c)) add_parameters(layer, all);
  for (const Layer& layer : decoder_layers(c)) add_parameters(layer, all);
  return all;
}

}  // namespace tessera::models::wan_vae
