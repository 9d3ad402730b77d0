#include "tessera/models/wan/config.h"

#include "tessera/models/config_reader.h"

namespace tessera::models::wan {

namespace {

using Json = nlohmann::ordered_json;

Config parse_diffusers(const ConfigReader& json) {
  json.expect("qk_norm", "rms_norm_across_heads");
  json.expect_absent("image_dim", "an image-to-video model, which is not supported yet");
  json.expect_absent("added_kv_proj_dim", "an image-to-video model, which is not supported yet");
  Config c;
  c.num_heads = json.size("num_attention_heads");
  c.dim = c.num_heads * json.size("attention_head_dim");
  c.in_dim = json.size("in_channels", c.in_dim);
  c.out_dim = json.size("out_channels", c.out_dim);
  return c;
}

Config parse_official(const ConfigReader& json) {
  const std::string type = json.text("model_type", "t2v");
  if (type != "t2v") json.fail("model_type is \"" + type + "\", supported is \"t2v\"");
  json.expect("qk_norm", true);
  json.expect("window_size", {-1, -1});
  Config c;
  c.dim = json.size("dim");
  c.num_heads = json.size("num_heads");
  c.in_dim = json.size("in_dim", c.in_dim);
  c.out_dim = json.size("out_dim", c.out_dim);
  return c;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  Config c = json.has("num_attention_heads") ? parse_diffusers(json) : parse_official(json);
  json.expect("cross_attn_norm", true);
  json.expect("patch_size", {c.patch[0], c.patch[1], c.patch[2]});
  c.ffn_dim = json.size("ffn_dim");
  c.num_layers = json.size("num_layers");
  c.freq_dim = json.size("freq_dim", c.freq_dim);
  c.text_dim = json.size("text_dim", c.text_dim);
  c.text_len = json.size("text_len", c.text_len);
  c.eps = json.real("eps", c.eps);
  if (c.dim % c.num_heads != 0)
    json.fail("dim " + std::to_string(c.dim) + " is not a multiple of num_heads " + std::to_string(c.num_heads));
  if (c.head_dim() % 2 != 0 || c.head_dim() < 6)
    json.fail("a head of " + std::to_string(c.head_dim()) +
              " channels cannot turn by 3 axes: it must be even and at least 6");
  if (c.freq_dim % 2 != 0) json.fail("freq_dim " + std::to_string(c.freq_dim) + " is odd");
  if (c.in_dim != c.out_dim)
    json.fail("in_dim " + std::to_string(c.in_dim) + " and out_dim " + std::to_string(c.out_dim) +
              " differ: an image-to-video model, which is not supported yet");
  return c;
}

std::string to_json(const Config& c) {
  const Config usual;
  Json json = {{"_class_name", "WanModel"},  {"model_type", "t2v"},  {"text_len", c.text_len},
               {"in_dim", c.in_dim},         {"dim", c.dim},         {"ffn_dim", c.ffn_dim},
               {"freq_dim", c.freq_dim},     {"out_dim", c.out_dim}, {"num_heads", c.num_heads},
               {"num_layers", c.num_layers}, {"eps", c.eps}};
  if (c.text_dim != usual.text_dim) json["text_dim"] = c.text_dim;
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const std::vector<std::pair<std::string, Config>> table = {
      {"wan2.1-t2v-1.3b", {}},
      {"wan2.1-t2v-14b", {.dim = 5120, .ffn_dim = 13824, .num_heads = 40, .num_layers = 40}},
      // 36M parameters: the model of docs/benchmarks.md
      {"wan-bench-36m",
       {.dim = 512, .ffn_dim = 2048, .num_heads = 8, .num_layers = 8, .text_dim = 512, .text_len = 64}},
      // 7M parameters, for make demo: latents of the built-in wavelet, text of umt5-demo. A token's 4 * 48 values must
      // fit into the width with room to spare: with 96 channels the noise cannot pass, and the loss stays near 1.
      {"wan-demo",
       {.dim = 256,
        .ffn_dim = 1024,
        .num_heads = 4,
        .num_layers = 6,
        .in_dim = 48,
        .out_dim = 48,
        .text_dim = 64,
        .text_len = 32}},
      // small enough for a unit test, every size different
      {"wan-tiny",
       {.dim = 48,
        .ffn_dim = 80,
        .num_heads = 2,
        .num_layers = 2,
        .in_dim = 4,
        .out_dim = 4,
        .text_dim = 20,
        .text_len = 6,
        .freq_dim = 32}},
  };
  return table;
}

}  // namespace tessera::models::wan
