#include "tessera/models/wan/s2v_parameters.h"

#include "tessera/models/common/unit_parameters.h"
#include "tessera/models/wan/parameters.h"
#include "tessera/models/wan/s2v_tokens.h"

namespace tessera::models::wan {

plan::UnitSpec s2v_stem_spec(const S2vConfig& c) {
  UnitParameters p("stem", "stem", "");
  p.spec = stem_spec(c.base);
  const int64_t d = c.base.dim, channels = c.base.in_dim;
  const auto& patch = c.base.patch;
  p.linear("cond_encoder", {d, c.cond_dim, patch[0], patch[1], patch[2]});
  for (const MotionBucket& bucket : kMotionBuckets)
    p.linear(std::string(bucket.site), {d, channels, bucket.kernel[0], bucket.kernel[1], bucket.kernel[2]});
  p.add("trainable_cond_mask.weight", {3, d});

  const std::string audio = "casual_audio_encoder.";  // sic
  constexpr int64_t kTaps = 3;
  p.add(audio + "weights", {1, kAudioLayers, 1, 1});
  p.linear(audio + "encoder.conv1_local.conv", {d / 4 * c.num_audio_token, c.audio_dim, kTaps});
  p.linear(audio + "encoder.conv1_global.conv", {d / 4, c.audio_dim, kTaps});
  p.linear(audio + "encoder.conv2.conv", {d / 2, d / 4, kTaps});
  p.linear(audio + "encoder.conv3.conv", {d, d / 2, kTaps});
  p.linear(audio + "encoder.final_linear", {d, d});
  p.add(audio + "encoder.padding_tokens", {1, 1, 1, d});
  return p.spec;
}

plan::UnitSpec injector_spec(const S2vConfig& c, size_t index) {
  const std::string j = std::to_string(index), injector = "audio_injector.injector." + j;
  // Site names include the injector's number, so measurements by site differ: each injector is a kind of its own.
  UnitParameters p("injector." + j, "injector." + j, "");
  const int64_t d = c.base.dim;
  p.linear("audio_injector.injector_adain_layers." + j + ".linear", {2 * d, d});
  for (const char* site : {".q", ".k", ".v"}) p.linear(injector + site, {d, d});
  p.add(injector + ".norm_q.weight", {d});
  p.add(injector + ".norm_k.weight", {d});
  p.linear(injector + ".o", {d, d});
  return p.spec;
}

Initial s2v_initial_values(const plan::ParamSpec& param, bool released) {
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
  return initial_values(param, released);
}

}  // namespace tessera::models::wan
