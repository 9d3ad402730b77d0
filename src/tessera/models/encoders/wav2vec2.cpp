#include "tessera/models/encoders/wav2vec2.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/ops/convolution.h"

namespace tessera::models::wav2vec {

namespace {

constexpr const char* kPosition = "encoder.pos_conv_embed.conv";
constexpr double kVarianceEps = 1e-7;  // of the waveform
constexpr double kFeatureEps =
    1e-5;  // of the norms behind its convolutions, whatever layer_norm_eps says of the others

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// The name since torch 2.0 of a weight norm's parameter that has the older name.
std::string newer_name(const std::string& name) {
  const std::string weight = std::string(kPosition) + ".";
  if (name == weight + "weight_g") return weight + "parametrizations.weight.original0";
  if (name == weight + "weight_v") return weight + "parametrizations.weight.original1";
  return {};
}

}  // namespace

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"wav2vec2-large-xlsr-53", {}},
      // as many layers as the large model but narrow; with random weights, for runs of a few seconds
      {"wav2vec-demo",
       {.hidden_size = 32,
        .num_heads = 2,
        .ffn_dim = 64,
        .conv_dim = std::vector<int64_t>(7, 16),
        .position_groups = 4}},
  };
  return table;
}

std::vector<std::pair<std::string, std::vector<int64_t>>> parameters(const Config& c) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
  const auto pair = [&](const std::string& site, std::vector<int64_t> shape) {
    const int64_t out = shape.front();
    all.emplace_back(site + ".weight", std::move(shape));
    all.emplace_back(site + ".bias", std::vector<int64_t>{out});
  };
  for (size_t i = 0; i < c.conv_dim.size(); ++i) {
    const std::string site = "feature_extractor.conv_layers." + std::to_string(i);
    pair(site + ".conv", {c.conv_dim[i], i == 0 ? 1 : c.conv_dim[i - 1], c.conv_kernel[i]});
    pair(site + ".layer_norm", {c.conv_dim[i]});
  }
  const int64_t d = c.hidden_size;
  pair("feature_projection.layer_norm", {c.conv_dim.back()});
  pair("feature_projection.projection", {d, c.conv_dim.back()});
  all.emplace_back(std::string(kPosition) + ".weight_g", std::vector<int64_t>{1, 1, c.position_kernel});
  all.emplace_back(std::string(kPosition) + ".weight_v",
                   std::vector<int64_t>{d, d / c.position_groups, c.position_kernel});
  all.emplace_back(std::string(kPosition) + ".bias", std::vector<int64_t>{d});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string site = "encoder.layers." + std::to_string(i);
    pair(site + ".layer_norm", {d});
    for (const char* name : {".attention.q_proj", ".attention.k_proj", ".attention.v_proj", ".attention.out_proj"})
      pair(site + name, {d, d});
    pair(site + ".final_layer_norm", {d});
    pair(site + ".feed_forward.intermediate_dense", {c.ffn_dim, d});
    pair(site + ".feed_forward.output_dense", {d, c.ffn_dim});
  }
  pair("encoder.layer_norm", {d});
  return all;
}

Wav2Vec2::Wav2Vec2(Config config, const Reader& read, const std::string& file) : config_(std::move(config)) {
  for (const auto& [name, shape] : parameters(config_)) {
    Tensor value = read("wav2vec2." + name);
    const std::string other = newer_name(name);
    if (!value.defined() && !other.empty()) value = read("wav2vec2." + other);
    check_input(value.defined(), "models.wav2vec", file + ": tensor 'wav2vec2." + name + "' is missing",
                "give the folder of a wav2vec2-large-xlsr-53 model, or fetch the file again");
    check_input(value.sizes() == at::IntArrayRef(shape), "models.wav2vec",
                file + ": tensor 'wav2vec2." + name + "' has shape " + shape_text(value.sizes()) + ", expected " +
                    shape_text(shape),
                "does the config.json beside it belong to these weights?");
    weights_[name] = value.to(at::kFloat);
  }
}

Wav2Vec2::Wav2Vec2(Config config, uint64_t seed) : config_(std::move(config)) {
  for (const auto& [name, shape] : parameters(config_)) {
    Tensor value = at::empty(shape, at::kFloat);
    const bool vector = shape.size() == 1, bias = name.ends_with(".bias");
    const double fan = static_cast<double>(value.numel() / value.size(0));
    const Initial initial = bias                          ? Initial::constant(0)
                            : vector                      ? Initial::constant(1)
                            : name.ends_with(".weight_g") ? Initial::constant(1)
                                                          : Initial::normal(1 / std::sqrt(fan));
    draw_initial(initial, seed, "wav2vec2." + name, 0, value.numel(), value.mutable_data_ptr<float>());
    weights_[name] = value;
  }
}

Tensor Wav2Vec2::linear(const std::string& site, const Tensor& x) const {
  return at::linear(x, at(site + ".weight"), at(site + ".bias"));
}
Tensor Wav2Vec2::norm(const std::string& site, const Tensor& x) const {
  return at::layer_norm(x, {x.size(-1)}, at(site + ".weight"), at(site + ".bias"), config_.eps);
}

Tensor Wav2Vec2::normalise(const Tensor& wave) {
  const Tensor centred = wave.to(at::kFloat) - wave.to(at::kFloat).mean();
  return centred / (centred.square().mean() + kVarianceEps).sqrt();
}

Tensor Wav2Vec2::features(const Tensor& normalised) const {
  check_input(normalised.dim() == 1 && normalised.size(0) >= config_.shortest(), "models.wav2vec",
              "audio of " + std::to_string(normalised.numel()) + " samples: expected at least " +
                  std::to_string(config_.shortest()),
              "the clip is shorter than one row of audio features: remove it");
  Tensor x = normalised.view({1, 1, -1});  // [1, channels, T]
  for (size_t i = 0; i < config_.conv_dim.size(); ++i) {
    const std::string site = "feature_extractor.conv_layers." + std::to_string(i);
    x = ops::convolution(x, at(site + ".conv.weight"), at(site + ".conv.bias"), {config_.conv_stride[i]}, {0});
    const Tensor normed = at::layer_norm(x.transpose(1, 2), {x.size(1)}, at(site + ".layer_norm.weight"),
                                         at(site + ".layer_norm.bias"), kFeatureEps);
    x = at::gelu(normed.transpose(1, 2));
  }
  return x[0].t().contiguous();
}

std::vector<Tensor> Wav2Vec2::encode(const Tensor& features) const {
  Tensor x = linear("feature_projection.projection", norm("feature_projection.layer_norm", features));  // [T, d]
  // The weight norm has a magnitude for each tap: norms are taken over the other two dimensions.
  const Tensor &direction = at(std::string(kPosition) + ".weight_v"),
               &length = at(std::string(kPosition) + ".weight_g");
  const Tensor weight = direction * (length / direction.square().sum(at::IntArrayRef({0, 1}), /*keepdim=*/true).sqrt());
  Tensor position = ops::convolution(x.t().unsqueeze(0), weight, at(std::string(kPosition) + ".bias"), /*stride=*/{1},
                                     {config_.position_kernel / 2}, config_.position_groups);
  if (config_.position_kernel % 2 == 0) position = position.slice(2, 0, -1);
  x = x + at::gelu(position)[0].t();
  std::vector<Tensor> states = {x};
  for (int64_t i = 0; i < config_.num_layers; ++i)
    states.push_back(layer("encoder.layers." + std::to_string(i), states.back()));
  return states;
}

Tensor Wav2Vec2::layer(const std::string& site, const Tensor& x) const {
  const Tensor y = x + attention(site + ".attention", norm(site + ".layer_norm", x));
  const Tensor wide = at::gelu(linear(site + ".feed_forward.intermediate_dense", norm(site + ".final_layer_norm", y)));
  return y + linear(site + ".feed_forward.output_dense", wide);
}

Tensor Wav2Vec2::attention(const std::string& site, const Tensor& x) const {
  const auto heads = [&](const char* name) {  // [1, heads, T, d_h]
    return linear(site + name, x).view({1, x.size(0), config_.num_heads, -1}).transpose(1, 2);
  };
  const Tensor out = at::scaled_dot_product_attention(heads(".q_proj"), heads(".k_proj"), heads(".v_proj"));
  return linear(site + ".out_proj", out.transpose(1, 2).reshape(x.sizes()));
}

Tensor Wav2Vec2::final_norm(const Tensor& state) const { return norm("encoder.layer_norm", state); }

std::vector<Tensor> Wav2Vec2::hidden_states(const Tensor& wave) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> states = encode(features(normalise(wave)));
  states.back() = final_norm(states.back());
  return states;
}

Tensor Wav2Vec2::rows(const Tensor& wave, double fps, int64_t count) const {
  return pick_rows(to_rate(at::stack(hidden_states(wave))), fps, count);
}

int64_t Wav2Vec2::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, value] : weights_) sum += static_cast<int64_t>(value.nbytes());
  return sum;
}

namespace {

std::vector<std::pair<std::string, net::AudioSizes>> preset_sizes() {
  std::vector<std::pair<std::string, net::AudioSizes>> all;
  for (const auto& [name, config] : presets()) all.emplace_back(name, sizes_of(config));
  return all;
}

std::unique_ptr<net::AudioEncoder> from_preset(const std::string& preset, uint64_t seed) {
  return std::make_unique<Wav2Vec2>(find_named(presets(), "data.audio_encoder", preset), seed);
}

std::unique_ptr<net::AudioEncoder> from_json(const std::string& json, const std::string& file, const Reader& read,
                                             const std::string& weights) {
  return std::make_unique<Wav2Vec2>(parse_config(json, file), read, weights);
}

/// out.bucket_B: clips of B frames at 16 a second; out.bucket_fpsF_mM: others, of a third of the rows each.
void add_rows(const Tensor& steady, const CaseTensors& file, NamedTensors& results) {
  const auto rows = [&](const std::string& end, double fps, int64_t frames, int64_t around, const std::string& name) {
    const int64_t clips = clips_of(steady.size(1), fps, frames), count = clips * frames;
    const Tensor picked = pick_rows(steady, fps, count, around);
    results.emplace_back(name, picked.transpose(1, 2).unsqueeze(0));
    results.emplace_back("out.indices_fps" + end, at::tensor(nearest_rows(fps, count), at::kLong));
    return clips;
  };
  for (const std::string& name : file.names("out.bucket_")) {
    const std::string what = name.substr(std::string("out.bucket_").size());
    if (what.starts_with("fps")) continue;
    const int64_t clips = rows("16_" + what, 16, std::stoll(what), 0, name);
    results.emplace_back("out.num_repeat_" + what, at::scalar_tensor(clips, at::kLong));
  }
  if (file.has("out.bucket_fps25_m1")) rows("25_20", 25, 20, 1, "out.bucket_fps25_m1");
}

NamedTensors case_results(const net::AudioEncoder& any, const CaseTensors& file) {
  const auto& encoder = dynamic_cast<const Wav2Vec2&>(any);
  NamedTensors results;
  const Tensor wave = encoder.normalise(file.tensor("in.waveform"));
  results.emplace_back("out.input_values", wave);
  const Tensor features = encoder.features(wave);
  results.emplace_back("out.conv_features", features.t());
  std::vector<Tensor> states = encoder.encode(features);
  results.emplace_back("out.last_before_norm", states.back());
  states.back() = encoder.final_norm(states.back());
  for (size_t i = 0; i < states.size(); ++i) results.emplace_back("out.hidden." + std::to_string(i), states[i]);
  const Tensor steady = to_rate(at::stack(states));
  results.emplace_back("out.feat_30fps", steady);
  results.emplace_back("out.feat_30fps_last", steady.slice(0, -1));
  add_rows(steady, file, results);
  return results;
}

}  // namespace

AudioEncoderMake audio_encoder() {
  return {.name = "wav2vec2",
          .released = "wav2vec2-large-xlsr-53-english",
          .presets = preset_sizes,
          .from_preset = from_preset,
          .sizes = [](const std::string& json, const std::string& file) { return sizes_of(parse_config(json, file)); },
          .from_json = from_json,
          .weights = {.kind = ModelKind::audio_encoder,
                      .title = {},
                      .model = "wav2vec2",
                      .variant = {},
                      .marks = {"wav2vec2.feature_projection.projection.weight",
                                "wav2vec2.encoder.layers.0.attention.q_proj.weight"},
                      .names = {}},
          .verify = {.kind = "wav2vec", .results = case_results}};
}

}  // namespace tessera::models::wav2vec

namespace tessera::models {

using at::Tensor;

Tensor to_rate(const Tensor& states, double from, double to) {
  const auto length = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(states.size(1)) / from * to));
  return at::upsample_linear1d(states.transpose(1, 2), {length}, /*align_corners=*/true).transpose(1, 2).contiguous();
}

std::vector<int64_t> nearest_rows(double fps, int64_t count) {
  std::vector<int64_t> rows;
  const double seconds = static_cast<double>(count) / fps, step = seconds / static_cast<double>(count);
  const auto last = static_cast<int64_t>(std::ceil(seconds * kSteadyRate)) - 1;
  for (int64_t k = 0; k < count; ++k) {
    // nearbyint rounds ties to the even row
    const auto row = static_cast<int64_t>(std::nearbyint(static_cast<double>(k) * step * kSteadyRate));
    rows.push_back(std::min(row, last));
  }
  return rows;
}

Tensor pick_rows(const Tensor& steady, double fps, int64_t count, int64_t around) {
  const int64_t known = steady.size(1), stride = std::max<int64_t>(1, static_cast<int64_t>(kSteadyRate / fps));
  const int64_t width = 2 * around + 1;
  const std::vector<int64_t> rows = nearest_rows(fps, count);
  std::vector<int64_t> picked;
  int64_t found_rows = 0;  // rows before the end of the audio
  for (const int64_t row : rows) {
    if (row >= known) break;
    ++found_rows;
    for (int64_t i = -around; i <= around; ++i) picked.push_back(std::clamp<int64_t>(row + i * stride, 0, known - 1));
  }
  const Tensor found = steady.index_select(1, at::tensor(picked, at::kLong));
  return at::constant_pad_nd(found.view({steady.size(0), found_rows, width * steady.size(2)}),
                             {0, 0, 0, count - found_rows});
}

int64_t clips_of(int64_t steady_rows, double fps, int64_t frames) {
  return static_cast<int64_t>(static_cast<double>(steady_rows) / (static_cast<double>(frames) * (kSteadyRate / fps))) +
         1;
}

}  // namespace tessera::models
