#include "tessera/models/vae/dc_ae_video_layers.h"

namespace tessera::models::dc_ae_video {

using Kind = Layer::Kind;

namespace {

/// The blocks of a stage, numbered from `first` on.
void add_blocks(std::vector<Layer>& layers, const Stage& stage, int64_t depth, const std::string& name, int64_t first) {
  for (int64_t i = 0; i < depth; ++i)
    layers.push_back({stage.attention ? Kind::attention : Kind::residual, name + std::to_string(first + i), stage.width,
                      stage.width});
}

std::string stage_name(const char* half, size_t stage) {
  return std::string(half) + ".stages." + std::to_string(stage) + ".op_list.";
}

}  // namespace

std::vector<Layer> encoder_layers(const Config& config) {
  const std::vector<Stage>& stages = config.stages;
  std::vector<Layer> layers = {{Kind::conv, "encoder.project_in.conv", 3, stages.front().width}};
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::string name = stage_name("encoder", s);
    add_blocks(layers, stages[s], stages[s].encoder_depth, name, 0);
    if (s + 1 < stages.size())
      layers.push_back({Kind::down, name + std::to_string(stages[s].encoder_depth) + ".main.conv", stages[s].width,
                        stages[s + 1].width, stages[s].halves_time});
  }
  layers.push_back(
      {Kind::squeeze, "encoder.project_out.main.op_list.0.conv", stages.back().width, config.latent_channels});
  return layers;
}

std::vector<Layer> decoder_layers(const Config& config) {
  const std::vector<Stage>& stages = config.stages;
  std::vector<Layer> layers = {
      {Kind::widen, "decoder.project_in.main.conv", config.latent_channels, stages.back().width}};
  for (size_t s = stages.size(); s-- > 0;) {
    const std::string name = stage_name("decoder", s);
    const bool coarsest = s + 1 == stages.size();
    if (!coarsest)
      layers.push_back(
          {Kind::up, name + "0.main.conv.conv", stages[s + 1].width, stages[s].width, stages[s].halves_time});
    add_blocks(layers, stages[s], stages[s].decoder_depth, name, coarsest ? 0 : 1);
  }
  layers.push_back({Kind::head, "decoder.project_out.op_list", stages.front().width, 3});
  return layers;
}

namespace {

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
    const std::string attention = name + ".context_module.main", conv = name + ".local_module.main";
    weight(attention + ".qkv.conv", {3 * c, c, 1, 1, 1});
    weight(attention + ".aggreg.0.0", {3 * c, 1, 5, 5, 5});
    weight(attention + ".aggreg.0.1", {3 * c, config_.head_dim, 1, 1, 1});
    weight(attention + ".proj.conv", {c, 2 * c, 1, 1, 1});
    both(attention + ".proj.norm", {c});
    both(conv + ".inverted_conv.conv", {8 * c, c, 1, 1, 1});
    both(conv + ".depth_conv.conv", {8 * c, 1, 3, 3, 3});
    weight(conv + ".point_conv.conv", {c, 4 * c, 1, 1, 1});
    both(conv + ".point_conv.norm", {c});
  }

  void add(const Layer& layer) {
    const auto& [kind, name, in, out, temporal] = layer;
    switch (kind) {
      case Kind::conv:
      case Kind::squeeze:
      case Kind::widen:
      case Kind::down:
      case Kind::up:
        return both(name, {out, in, 3, 3, 3});
      case Kind::residual:
        both(name + ".main.conv1.conv", {out, in, 3, 3, 3});
        weight(name + ".main.conv2.conv", {out, out, 3, 3, 3});
        return both(name + ".main.conv2.norm", {out});
      case Kind::attention:
        return add_attention(name, in);
      case Kind::head:
        both(name + ".0", {in});
        return both(name + ".2.conv", {out, in, 3, 3, 3});
    }
  }

  const Config& config_;
};

}  // namespace

std::vector<Parameter> parameters(const Config& config) { return Parameters(config).all; }

}  // namespace tessera::models::dc_ae_video
