#include "tessera/models/wan/s2v_config.h"

#include "tessera/models/common/config_reader.h"

namespace tessera::models::wan {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kReleasedLayers = 40;
const std::vector<int64_t> kReleasedInjectors = {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39};

std::vector<int64_t> parse_layers(const ConfigReader& json, int64_t num_layers) {
  constexpr const char* kKey = "audio_inject_layers";
  if (!json.has(kKey) && num_layers == kReleasedLayers) return kReleasedInjectors;
  return block_numbers(json, kKey, num_layers);
}

S2vConfig released() {
  return {.base = {.dim = 5120, .ffn_dim = 13824, .num_heads = 40, .num_layers = kReleasedLayers},
          .inject_after = kReleasedInjectors};
}

/// Small enough for a unit test.
S2vConfig tiny() {
  return {.base = {.dim = 48,
                   .ffn_dim = 80,
                   .num_heads = 2,
                   .num_layers = 3,
                   .in_dim = 4,
                   .out_dim = 4,
                   .text_dim = 20,
                   .text_len = 6,
                   .freq_dim = 32},
          .cond_dim = 4,
          .audio_dim = 32,
          .inject_after = {0, 2}};
}

/// 12M parameters, for runs of some minutes: latents of the built-in wavelet, text of umt5-demo, audio of wav2vec-demo.
S2vConfig demo() {
  return {.base = {.dim = 256,
                   .ffn_dim = 1024,
                   .num_heads = 4,
                   .num_layers = 6,
                   .in_dim = 48,
                   .out_dim = 48,
                   .text_dim = 64,
                   .text_len = 32},
          .cond_dim = 48,
          .audio_dim = 32,
          .inject_after = {0, 2, 4}};
}

}  // namespace

bool is_s2v_config(std::string_view text) {
  const auto json = json_or_nothing(text);
  if (!json.is_object()) return false;
  const auto is = [&](const char* key, const char* value) { return json.contains(key) && json[key] == value; };
  return is("model_type", "s2v") || is("_class_name", "WanModel_S2V");
}

S2vConfig parse_s2v_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("enable_adain", true);
  json.expect("adain_mode", "attn_norm");
  json.expect("zero_timestep", true);
  json.expect("enable_motioner", false);
  json.expect("add_last_motion", true);
  json.expect("enable_tsm", false);
  json.expect("enable_framepack", true);
  json.expect("framepack_drop_mode", "padd");
  json.expect("trainable_token_pos_emb", false);
  json.without_effect({"zero_init", "motion_token_num"});  // of training, and of the motioner
  // the other fields are those of a text-to-video transformer
  Json base = parse_ordered_json(text, file);
  base["model_type"] = "t2v";
  S2vConfig c;
  c.base = parse_config(base.dump(), file);
  c.cond_dim = json.size("cond_dim", c.cond_dim);
  c.audio_dim = json.size("audio_dim", c.audio_dim);
  c.num_audio_token = json.size("num_audio_token", c.num_audio_token);
  c.inject_after = parse_layers(json, c.base.num_layers);
  if (c.base.dim % 4 != 0) json.fail("dim " + std::to_string(c.base.dim) + " is not a multiple of 4");
  return c;
}

std::string to_json(const S2vConfig& c) {
  Json json = Json::parse(to_json(c.base));
  json["_class_name"] = "WanModel_S2V";
  json["model_type"] = "s2v";
  json["cond_dim"] = c.cond_dim;
  json["audio_dim"] = c.audio_dim;
  json["num_audio_token"] = c.num_audio_token;
  json["audio_inject_layers"] = c.inject_after;
  json["enable_adain"] = true;
  json["adain_mode"] = "attn_norm";
  json["zero_init"] = true;
  json["zero_timestep"] = true;
  json["enable_motioner"] = false;
  json["add_last_motion"] = true;
  json["enable_tsm"] = false;
  json["enable_framepack"] = true;
  json["framepack_drop_mode"] = "padd";
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, S2vConfig>>& s2v_presets() {
  static const std::vector<std::pair<std::string, S2vConfig>> table = {
      {"wan2.2-s2v-14b", released()}, {"wan-s2v-demo", demo()}, {"wan-s2v-tiny", tiny()}};
  return table;
}

}  // namespace tessera::models::wan
