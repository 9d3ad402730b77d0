#include "tessera/models/opensora/config.h"

#include <algorithm>
#include <numeric>

#include "tessera/models/common/config_reader.h"

namespace tessera::models::opensora {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kClass = "MMDiTModel", kFluxClass = "FluxTransformer2DModel";
constexpr int64_t kFluxPatch = 2;  // diffusers' pipeline cuts the patches, and its class counts their channels

void check_sizes(const ConfigReader& json, const Config& c) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (const int64_t deepest = std::max(c.depth, c.depth_single); deepest > ConfigReader::kMostLayers)
    json.fail("a depth of " + number(deepest) + " blocks, expected at most " + number(ConfigReader::kMostLayers));
  json.expect_narrow("the width", static_cast<double>(c.hidden_size));
  json.expect_narrow("mlp_ratio times hidden_size",
                     static_cast<double>(c.mlp_ratio) * static_cast<double>(c.hidden_size));
  if (c.hidden_size % c.num_heads != 0)
    json.fail("hidden_size " + number(c.hidden_size) + " is not a multiple of num_heads " + number(c.num_heads));
  if (c.in_channels % (c.patch * c.patch) != 0)
    json.fail("in_channels " + number(c.in_channels) + " is not a multiple of the " + number(c.patch * c.patch) +
              " places of a patch");
  const int64_t rotated = std::accumulate(c.axes.begin(), c.axes.end(), int64_t{0});
  if (rotated != c.head_dim())
    json.fail("axes_dim has " + number(rotated) + " channels together, a head has " + number(c.head_dim()));
  for (const int64_t axis : c.axes)
    if (axis % 2 != 0) json.fail("axes_dim has " + number(axis) + ": channels are rotated in pairs");
}

std::array<int64_t, 3> parse_axes(const ConfigReader& json, const char* key, const std::array<int64_t, 3>& absent) {
  const std::vector<int64_t> axes = json.sizes(key, {absent.begin(), absent.end()});
  if (axes.size() != 3) json.fail(std::string(key) + " must have three numbers: of frames, rows and columns");
  return {axes[0], axes[1], axes[2]};
}

Config parse_flux(const ConfigReader& json) {
  Config c;
  json.expect("patch_size", 1);
  c.patch = kFluxPatch;
  c.in_channels = json.size("in_channels", 64);
  if (json.has("out_channels")) json.expect("out_channels", c.in_channels);
  c.num_heads = json.size("num_attention_heads", 24);
  c.hidden_size = c.num_heads * json.size("attention_head_dim", 128);
  c.depth = json.size("num_layers", 19);
  c.depth_single = json.size("num_single_layers", 38);
  c.context_dim = json.size("joint_attention_dim", 4096);
  c.context_len = json.size("context_length", c.context_len);
  c.pooled_dim = json.size("pooled_projection_dim", 768);
  c.axes = parse_axes(json, "axes_dims_rope", c.axes);
  c.guidance = json.flag("guidance_embeds", false);
  c.cond = false;
  check_sizes(json, c);
  return c;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  const std::string type = json.text("_class_name", std::string(kClass));
  if (type == kFluxClass) return parse_flux(json);
  if (type != kClass)
    json.fail("_class_name is \"" + type + "\": supported are " + std::string(kClass) + " and " +
              std::string(kFluxClass));
  Config c;
  json.expect("theta", 10000);
  json.expect("_registry_type", "flux");
  const double ratio = json.real("mlp_ratio", static_cast<double>(c.mlp_ratio));
  json.expect_narrow("mlp_ratio", ratio);
  c.mlp_ratio = static_cast<int64_t>(ratio);
  if (ratio < 1 || static_cast<double>(c.mlp_ratio) != ratio) json.fail("mlp_ratio is no whole number from 1 on");
  json.expect("qkv_bias", true);
  c.hidden_size = json.size("hidden_size", c.hidden_size);
  c.num_heads = json.size("num_heads", c.num_heads);
  c.depth = json.size("depth", c.depth);
  c.depth_single = json.size("depth_single_blocks", c.depth_single);
  c.in_channels = json.size("in_channels", c.in_channels);
  c.patch = json.size("patch_size", c.patch);
  c.context_dim = json.size("context_in_dim", c.context_dim);
  c.context_len = json.size("context_length", c.context_len);
  c.pooled_dim = json.size("vec_in_dim", c.pooled_dim);
  c.axes = parse_axes(json, "axes_dim", c.axes);
  c.guidance = json.flag("guidance_embed", c.guidance);
  c.cond = json.flag("cond_embed", c.cond);
  c.fused = json.flag("fused_qkv", c.fused);
  c.neighbours = !json.flag("use_liger_rope", !c.neighbours);
  check_sizes(json, c);
  return c;
}

std::string to_json(const Config& c) {
  Json json = {{"_class_name", kClass},
               {"axes_dim", c.axes},
               {"cond_embed", c.cond},
               {"context_in_dim", c.context_dim},
               {"depth", c.depth},
               {"depth_single_blocks", c.depth_single},
               {"fused_qkv", c.fused},
               {"guidance_embed", c.guidance},
               {"hidden_size", c.hidden_size},
               {"in_channels", c.in_channels},
               {"mlp_ratio", static_cast<double>(c.mlp_ratio)},
               {"num_heads", c.num_heads},
               {"patch_size", c.patch},
               {"qkv_bias", true},
               {"theta", 10000},
               {"use_liger_rope", !c.neighbours},
               {"vec_in_dim", c.pooled_dim}};
  if (c.context_len != Config().context_len) json["context_length"] = c.context_len;  // ours: there the tokeniser's
  return json.dump(2) + "\n";
}

std::string to_diffusers_json(const Config& c) {
  if (c.cond || c.patch != kFluxPatch || c.mlp_ratio != Config().mlp_ratio)
    throw UserError(Exit::input, "models.config",
                    std::string("diffusers has no class for this model: ") + std::string(kFluxClass) +
                        " has no cond_in, patches of 2 x 2 and feed-forwards of four widths",
                    "convert it to official names");
  const Json json = {{"_class_name", kFluxClass},
                     {"attention_head_dim", c.head_dim()},
                     {"axes_dims_rope", c.axes},
                     {"guidance_embeds", c.guidance},
                     {"in_channels", c.in_channels},
                     {"joint_attention_dim", c.context_dim},
                     {"num_attention_heads", c.num_heads},
                     {"num_layers", c.depth},
                     {"num_single_layers", c.depth_single},
                     {"patch_size", 1},
                     {"pooled_projection_dim", c.pooled_dim}};
  return json.dump(2) + "\n";
}

const std::vector<std::pair<std::string, Config>>& presets() {
  static const Config released;
  const auto with = [](Config c, bool guidance, bool cond) {
    c.guidance = guidance, c.cond = cond;
    return c;
  };
  const auto of_dc_ae = [](Config c) {
    c.in_channels = 128, c.patch = 1;
    return c;
  };
  static const Config tiny = {.hidden_size = 32,
                              .num_heads = 4,
                              .depth = 1,
                              .depth_single = 2,
                              .in_channels = 16,
                              .context_dim = 20,
                              .context_len = 6,
                              .pooled_dim = 12,
                              .axes = {4, 2, 2}};
  static const std::vector<std::pair<std::string, Config>> table = {
      {"opensora2-11b", released},
      {"opensora2-11b-t2v", with(released, false, false)},
      {"opensora2-11b-dc-ae", of_dc_ae(released)},
      {"opensora2-flux-dev", with(released, true, false)},
      // 9M parameters, for runs of some minutes: latents of the built-in wavelet, text of umt5-demo and clip-text-demo
      {"opensora-demo",
       {.hidden_size = 256,
        .num_heads = 4,
        .depth = 2,
        .depth_single = 4,
        .in_channels = 192,
        .context_dim = 64,
        .context_len = 32,
        .pooled_dim = 32,
        .axes = {16, 24, 24}}},
      // small enough for a unit test
      {"opensora2-tiny", tiny},
      {"opensora2-tiny-guided", with(tiny, true, false)},
  };
  return table;
}

}  // namespace tessera::models::opensora
