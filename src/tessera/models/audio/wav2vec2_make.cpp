#include "tessera/models/audio/wav2vec2_make.h"

#include "tessera/models/audio/speech_rows.h"
#include "tessera/models/audio/wav2vec2.h"
#include "tessera/models/common/unknown.h"

namespace tessera::models::wav2vec {

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
