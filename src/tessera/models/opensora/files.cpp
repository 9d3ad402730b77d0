#include "tessera/models/opensora/files.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "tessera/base/check.h"
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

namespace {

/// A table of patterns with the texts that they view.
class Names {
 public:
  void add(std::string ours, std::string theirs) {
    const std::string &a = texts_.emplace_back(std::move(ours)), &b = texts_.emplace_back(std::move(theirs));
    patterns_.push_back({a, b});
  }
  const std::vector<NamePattern>& patterns() const { return patterns_; }

 private:
  std::deque<std::string> texts_;  // which do not move
  std::vector<NamePattern> patterns_;
};

/// ".2of7." and the like: parts [first, first + size) of `count`.
std::string part(int64_t first, int64_t size, int64_t count, const char* dim = "", int64_t pairs = 0) {
  std::string text = "." + std::to_string(first);
  if (size > 1) text += "-" + std::to_string(first + size - 1);
  text += "of" + std::to_string(count) + dim;
  return text + (pairs > 0 ? "p" + std::to_string(pairs) : "") + ".";
}
/// A tensor that has the same rows there, in whichever order.
std::string reordered(const std::string& site, const std::string& rest, int64_t pairs) {
  return site + (pairs > 0 ? part(0, 1, 1, "", pairs) : ".") + rest;
}

void add_linear2(Names& names, const std::string& site, int64_t ratio) {
  names.add("single_blocks.#.linear2.attn.weight", site + part(0, 1, 1 + ratio, "c") + "weight");
  names.add("single_blocks.#.linear2.mlp.weight", site + part(1, ratio, 1 + ratio, "c") + "weight");
  names.add("single_blocks.#.linear2.mlp.bias", site + ".bias");
}

Names make_program_names(const FileForm& form) {
  Names names;
  const std::string streams[] = {"double_blocks.#.img_attn.", "double_blocks.#.txt_attn."}, single = "single_blocks.#.";
  for (const std::string norm : {"query_norm", "key_norm"})
    for (const std::string& site : {streams[0] + "norm.", streams[1] + "norm.", single + "norm."})
      names.add(site + norm + ".weight", reordered(site + norm, "scale", form.pairs));
  const int64_t ratio = form.mlp_ratio;
  const char* kNames[] = {"q_proj", "k_proj", "v_proj"};
  for (int64_t i = 0; i < 3; ++i) {
    const std::string name = kNames[i];
    const int64_t pairs = i < 2 ? form.pairs : 0;
    for (const std::string& stream : streams) {
      if (form.fused)
        names.add(stream + name + ".*", stream + "qkv" + part(i, 1, 3, "", pairs) + "*");
      else if (pairs > 0)
        names.add(stream + name + ".*", reordered(stream + name, "*", pairs));
    }
    if (form.fused)
      names.add(single + name + ".*", single + "linear1" + part(i, 1, 3 + ratio, "", pairs) + "*");
    else if (i == 2)
      names.add(single + name + ".*", single + "v_mlp" + part(0, 1, 1 + ratio) + "*");
    else if (pairs > 0)
      names.add(single + name + ".*", reordered(single + name, "*", pairs));
  }
  names.add(single + "mlp.*",
            single + (form.fused ? "linear1" + part(3, ratio, 3 + ratio) : "v_mlp" + part(1, ratio, 1 + ratio)) + "*");
  add_linear2(names, single + "linear2", ratio);
  names.add("final_layer.shift.*", "final_layer.adaLN_modulation.1.0of2.*");
  names.add("final_layer.scale.*", "final_layer.adaLN_modulation.1.1of2.*");
  return names;
}

Names make_diffusers_names(int64_t pairs, int64_t mlp_ratio) {
  Names names;
  names.add("img_in.*", "x_embedder.*");
  names.add("txt_in.*", "context_embedder.*");
  for (const auto& [ours, theirs] : {std::pair<std::string, std::string>{"time_in", "timestep"},
                                     {"vector_in", "text"},
                                     {"guidance_in", "guidance"}}) {
    names.add(ours + ".in_layer.*", "time_text_embed." + theirs + "_embedder.linear_1.*");
    names.add(ours + ".out_layer.*", "time_text_embed." + theirs + "_embedder.linear_2.*");
  }
  struct Stream {
    std::string ours, modulation, q, k, v, out, norm_q, norm_k, feed_forward;
  };
  const std::string twice = "double_blocks.#.", there = "transformer_blocks.#.";
  for (const Stream& s : {Stream{"img", "norm1", "to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k", "ff"},
                          Stream{"txt", "norm1_context", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out",
                                 "norm_added_q", "norm_added_k", "ff_context"}}) {
    const std::string attn = twice + s.ours + "_attn.", to = there + "attn.", mlp = twice + s.ours + "_mlp.";
    names.add(twice + s.ours + "_mod.lin.*", there + s.modulation + ".linear.*");
    names.add(attn + "q_proj.*", reordered(to + s.q, "*", pairs));
    names.add(attn + "k_proj.*", reordered(to + s.k, "*", pairs));
    names.add(attn + "v_proj.*", to + s.v + ".*");
    names.add(attn + "norm.query_norm.*", reordered(to + s.norm_q, "*", pairs));
    names.add(attn + "norm.key_norm.*", reordered(to + s.norm_k, "*", pairs));
    names.add(attn + "proj.*", to + s.out + ".*");
    names.add(mlp + "0.*", there + s.feed_forward + ".net.0.proj.*");
    names.add(mlp + "2.*", there + s.feed_forward + ".net.2.*");
  }
  const std::string once = "single_blocks.#.", single = "single_transformer_blocks.#.";
  names.add(once + "modulation.lin.*", single + "norm.linear.*");
  names.add(once + "q_proj.*", reordered(single + "attn.to_q", "*", pairs));
  names.add(once + "k_proj.*", reordered(single + "attn.to_k", "*", pairs));
  names.add(once + "v_proj.*", single + "attn.to_v.*");
  names.add(once + "norm.query_norm.*", reordered(single + "attn.norm_q", "*", pairs));
  names.add(once + "norm.key_norm.*", reordered(single + "attn.norm_k", "*", pairs));
  names.add(once + "mlp.*", single + "proj_mlp.*");
  add_linear2(names, single + "proj_out", mlp_ratio);
  // the scale comes first there
  names.add("final_layer.scale.*", "norm_out.linear.0of2.*");
  names.add("final_layer.shift.*", "norm_out.linear.1of2.*");
  names.add("final_layer.linear.*", "proj_out.*");
  return names;
}

/// The table of a key, made at its first use.
template <class Key, class Make>
const std::vector<NamePattern>& kept(const Key& key, const Make& make) {
  static std::mutex one_at_a_time;
  static std::map<Key, std::unique_ptr<const Names>> tables;
  const std::lock_guard lock(one_at_a_time);
  auto& table = tables[key];
  if (!table) table = std::make_unique<const Names>(make());
  return table->patterns();
}

constexpr const char* kHeadNorm = "double_blocks.0.img_attn.norm.query_norm.weight";

/// The names of files with heads of that width and such feed-forwards; they live as long as the program.
const ForeignNames& names_for(int64_t head_dim, int64_t mlp_ratio) {
  static std::mutex one_at_a_time;
  static std::map<std::pair<int64_t, int64_t>, std::unique_ptr<const ForeignNames>> known;
  const std::lock_guard lock(one_at_a_time);
  auto& names = known[{head_dim, mlp_ratio}];
  if (!names)
    names = std::make_unique<const ForeignNames>(ForeignNames{.diffusers = {diffusers_names(head_dim, mlp_ratio)},
                                                              .official = {program_names({false, 0, mlp_ratio})},
                                                              .fused = {program_names({true, head_dim, mlp_ratio})}});
  return *names;
}

/// One more than the highest N of "LIST.N.".
int64_t count_of(const Shapes& ours, const std::string& list) {
  int64_t most = 0;
  for (const auto& [name, shape] : ours) {
    int64_t index = 0;
    if (!name.starts_with(list + ".")) continue;
    const char *at = name.data() + list.size() + 1, *end = name.data() + name.size();
    if (std::from_chars(at, end, index).ec == std::errc() && index < kMostBlocks) most = std::max(most, index + 1);
  }
  return most;
}

/// The sizes that tensors tell. The patch they do not: it follows from the channels of `cond_in`.
Config sizes_of(const Shapes& ours) {
  Config c;
  c.hidden_size = size_of(ours, "img_in.weight", 0);
  const int64_t head = size_of(ours, kHeadNorm, 0);
  c.num_heads = head > 0 ? c.hidden_size / head : 0;
  if (head != Config().head_dim()) c.axes = {};
  if (c.hidden_size > 0) c.mlp_ratio = size_of(ours, "double_blocks.0.img_mlp.0.weight", 0) / c.hidden_size;
  c.depth = count_of(ours, "double_blocks");
  c.depth_single = count_of(ours, "single_blocks");
  c.in_channels = size_of(ours, "img_in.weight", 1);
  c.context_dim = size_of(ours, "txt_in.weight", 1);
  c.pooled_dim = size_of(ours, "vector_in.in_layer.weight", 1);
  c.guidance = ours.count("guidance_in.in_layer.weight") > 0;
  c.cond = ours.count("cond_in.weight") > 0;
  const int64_t places = c.cond ? size_of(ours, "cond_in.weight", 1) - c.in_channels : 0;  // of the mask
  c.patch = places == 1 ? 1 : 2;
  return c;
}

std::string preset_of(const Shapes& ours) {
  const Config c = sizes_of(ours);
  for (const auto& [preset, known] : presets()) {
    Config same = c;
    same.axes = known.axes, same.context_len = known.context_len;
    if (same == known) return preset;
  }
  return {};
}

/// Open-Sora's form, or diffusers'.
Json config_json(const ConfigSource& source) {
  source.size("img_in.weight", 0), source.size("txt_in.weight", 1), source.size(kHeadNorm, 0);
  Config c = sizes_of(source.size.shapes);
  check_heads(c.num_heads, c.mlp_ratio, source.size(kHeadNorm, 0),
              size_of(source.size.shapes, "double_blocks.0.img_mlp.0.weight", 0), c.hidden_size);
  if (!source.given.json.empty()) {
    const Json whole = source.given.over(to_json(c), "depth_single_blocks", "num_single_layers");
    const Config given = parse_config(whole.dump(), source.file);
    c.axes = given.axes, c.context_len = given.context_len;
    if (c.cond || given.patch == 1) c.patch = given.patch;
  }
  check_rotation(c.axes, c.head_dim());
  return Json::parse(source.diffusers ? to_diffusers_json(c) : to_json(c));
}

/// How heads of another width than the released ones are rotated.
std::vector<std::string> untold(const Shapes& ours, const Identity&) {
  return sizes_of(ours).axes[0] == 0 ? std::vector<std::string>{"axes_dim", "context_length"}
                                     : std::vector<std::string>();
}

}  // namespace

const std::vector<NamePattern>& program_names(const FileForm& form) {
  return kept(form, [&] { return make_program_names(form); });
}

const std::vector<NamePattern>& diffusers_names(int64_t head_dim, int64_t mlp_ratio) {
  return kept(std::pair(head_dim, mlp_ratio), [&] { return make_diffusers_names(head_dim, mlp_ratio); });
}

WeightForm weight_form() {
  return {.kind = ModelKind::denoiser,
          .title = "Open-Sora 2.0 and Flux transformers",
          .model = "opensora2",
          .variant = "mmdit",
          .marks = {"img_in.weight", "txt_in.weight", "double_blocks.0.img_attn.q_proj.weight",
                    "double_blocks.0.txt_attn.q_proj.weight", "single_blocks.0.linear2.attn.weight"},
          .names = names_for(Config().head_dim(), Config().mlp_ratio),
          .refine =
              [](const Shapes& ours, Identity& identity) {
                const int64_t head = size_of(ours, kHeadNorm, 0), ratio = sizes_of(ours).mlp_ratio;
                if (head > 0 && ratio > 0) identity.names = &names_for(head, ratio);
                const std::string preset = preset_of(ours);
                if (!preset.empty()) identity.model = preset;
              },
          .config = config_json,
          .untold = untold,
          .config_marks = {"depth_single_blocks", "num_single_layers"}};
}

}  // namespace tessera::models::opensora
