#include "tessera/models/vae/dc_ae_layers.h"

namespace tessera::models::dc_ae {

using Kind = Layer::Kind;

namespace {

/// The blocks of a stage, numbered from `first` on.
void add_blocks(std::vector<Layer>& layers, const Stage& stage, const std::string& name, int64_t first) {
  for (int64_t i = 0; i < stage.depth; ++i)
    layers.push_back({stage.attention ? Kind::attention : Kind::residual, name + "." + std::to_string(first + i),
                      stage.width, stage.width});
}

class Parameters {
 public:
  explicit Parameters(const Config& config) : config_(config) {
    for (const Layer& layer : encoder_layers(config)) add(layer);
    for (const Layer& layer : decoder_layers(config)) add(layer);
  }
  std::vector<Parameter> all;

 private:
  void weight(const std::string& site, std::vector<int64_t> shape) {
    all.push_back({site + ".weight", std::move(shape)});
  }
  void both(const std::string& site, std::vector<int64_t> shape) {
    const int64_t out = shape.front();
    weight(site, std::move(shape));
    all.push_back({site + ".bias", {out}});
  }

  void add_attention(const std::string& name, int64_t c) {
    const std::string attn = name + ".attn", scale = attn + ".to_qkv_multiscale.0", conv = name + ".conv_out";
    for (const char* site : {".to_q", ".to_k", ".to_v"}) weight(attn + site, {c, c});
    weight(scale + ".proj_in", {3 * c, 1, 5, 5});
    weight(scale + ".proj_out", {3 * c, config_.head_dim, 1, 1});
    weight(attn + ".to_out", {c, 2 * c});
    both(attn + ".norm_out", {c});
    both(conv + ".conv_inverted", {8 * c, c, 1, 1});
    both(conv + ".conv_depth", {8 * c, 1, 3, 3});
    weight(conv + ".conv_point", {c, 4 * c, 1, 1});
    both(conv + ".norm", {c});
  }

  void add(const Layer& layer) {
    const auto& [kind, name, in, out] = layer;
    switch (kind) {
      case Kind::conv:
      case Kind::squeeze:
      case Kind::widen:
        return both(name, {out, in, 3, 3});
      case Kind::down:
      case Kind::up:
        return both(name + ".conv", {out, in, 3, 3});
      case Kind::residual:
        both(name + ".conv1", {out, in, 3, 3});
        weight(name + ".conv2", {out, out, 3, 3});
        return both(name + ".norm", {out});
      case Kind::attention:
        return add_attention(name, in);
      case Kind::head:
        both(name + ".norm_out", {in});
        return both(name + ".conv_out", {out, in, 3, 3});
    }
  }

  const Config& config_;
};

}  // namespace

std::vector<Layer> encoder_layers(const Config& config) {
  const std::vector<Stage>& stages = config.encoder;
  std::vector<Layer> layers = {{Kind::conv, "encoder.conv_in", 3, stages.front().width}};
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::string name = "encoder.down_blocks." + std::to_string(s);
    add_blocks(layers, stages[s], name, 0);
    if (s + 1 < stages.size())
      layers.push_back(
          {Kind::down, name + "." + std::to_string(stages[s].depth), stages[s].width, stages[s + 1].width});
  }
  layers.push_back({Kind::squeeze, "encoder.conv_out", stages.back().width, config.latent_channels});
  return layers;
}

std::vector<Layer> decoder_layers(const Config& config) {
  const std::vector<Stage>& stages = config.decoder;
  std::vector<Layer> layers = {{Kind::widen, "decoder.conv_in", config.latent_channels, stages.back().width}};
  for (size_t s = stages.size(); s-- > 0;) {
    const std::string name = "decoder.up_blocks." + std::to_string(s);
    const bool coarsest = s + 1 == stages.size();
    if (!coarsest) layers.push_back({Kind::up, name + ".0", stages[s + 1].width, stages[s].width});
    add_blocks(layers, stages[s], name, coarsest ? 0 : 1);
  }
  layers.push_back({Kind::head, "decoder", stages.front().width, 3});
  return layers;
}

std::vector<Parameter> parameters(const Config& config) { return Parameters(config).all; }

}  // namespace tessera::models::dc_ae
