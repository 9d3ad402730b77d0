#include "tessera/models/wan/s2v_parameters.h"

#include "tessera/models/wan/parameters.h"
#include "tessera/models/wan/s2v_tokens.h"

namespace tessera::models::wan {

namespace {

void add_param(plan::UnitSpec& unit, const std::string& name, std::vector<int64_t> shape) {
  unit.params.push_back({.name = name, .shape = std::move(shape)});
}
void add_linear(plan::UnitSpec& unit, const std::string& name, std::vector<int64_t> shape) {
  const int64_t out = shape.front();
  add_param(unit, name + ".weight", std::move(shape));
  add_param(unit, name + ".bias", {out});
}

}  // namespace

plan::UnitSpec s2v_stem_spec(const S2vConfig& c) {
  plan::UnitSpec unit = stem_spec(c.base);
  const int64_t d = c.base.dim, channels = c.base.in_dim;
  const auto& p = c.base.patch;
  add_linear(unit, "cond_encoder", {d, c.cond_dim, p[0], p[1], p[2]});
  for (const MotionBucket& bucket : kMotionBuckets)
    add_linear(unit, std::string(bucket.site), {d, channels, bucket.kernel[0], bucket.kernel[1], bucket.kernel[2]});
  add_param(unit, "trainable_cond_mask.weight", {3, d});

  const std::string audio = "casual_audio_encoder.";  // sic
  constexpr int64_t kTaps = 3;
  add_param(unit, audio + "weights", {1, kAudioLayers, 1, 1});
  add_linear(unit, audio + "encoder.conv1_local.conv", {d / 4 * c.num_audio_token, c.audio_dim, kTaps});
  add_linear(unit, audio + "encoder.conv1_global.conv", {d / 4, c.audio_dim, kTaps});
  add_linear(unit, audio + "encoder.conv2.conv", {d / 2, d / 4, kTaps});
  add_linear(unit, audio + "encoder.conv3.conv", {d, d / 2, kTaps});
  add_linear(unit, audio + "encoder.final_linear", {d, d});
  add_param(unit, audio + "encoder.padding_tokens", {1, 1, 1, d});
  return unit;
}

plan::UnitSpec injector_spec(const S2vConfig& c, size_t index) {
  const std::string j = std::to_string(index), injector = "audio_injector.injector." + j;
  // Site names include the injector's number, so measurements by site differ: each injector is a kind of its own.
  plan::UnitSpec unit{.name = "injector." + j, .kind = "injector." + j, .params = {}, .cost = {}};
  const int64_t d = c.base.dim;
  add_linear(unit, "audio_injector.injector_adain_layers." + j + ".linear", {2 * d, d});
  for (const char* site : {".q", ".k", ".v"}) add_linear(unit, injector + site, {d, d});
  add_param(unit, injector + ".norm_q.weight", {d});
  add_param(unit, injector + ".norm_k.weight", {d});
  add_linear(unit, injector + ".o", {d, d});
  return unit;
}

Initial s2v_initial_values(const plan::ParamSpec& param) {
  const std::string_view name = param.name;
  const bool output = name.starts_with("audio_injector.injector.") && name.ends_with(".o.weight");
  if (output || name.starts_with("audio_injector.injector_adain_layers.") || name.starts_with("cond_encoder.") ||
      name.starts_with("trainable_cond_mask.") || name.ends_with(".padding_tokens"))
    return Initial::constant(0);
  if (name == "casual_audio_encoder.weights") return Initial::constant(0.01);
  if (name.ends_with(".conv.weight")) {  // xavier of a convolution counts its taps on both sides
    const auto taps = static_cast<double>(param.shape[2]);
    return Initial::xavier(static_cast<double>(param.shape[1]) * taps, static_cast<double>(param.shape[0]) * taps);
  }
  return initial_values(param);
}

}  // namespace tessera::models::wan
