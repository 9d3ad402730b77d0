#include "tessera/models/sana/parameters.h"

#include "tessera/models/common/unit_parameters.h"

namespace tessera::models::sana {

namespace {

constexpr plan::Split kColumns = plan::Split::column_parallel, kRows = plan::Split::row_parallel;

/// By heads, and by the channels of the feed-forward. Keys and values of captions are computed from rows that every
/// rank has. The convolution over time reads all channels of a row: every rank has its weight, and convolves its own
/// rows.
constexpr Shard kShards[] = {
    {"attn.q.weight", kColumns},
    {"attn.k.weight", kColumns},
    {"attn.v.weight", kColumns},
    {"attn.q_norm.weight", kColumns},
    {"attn.k_norm.weight", kColumns},
    {"attn.proj.weight", kRows},
    {"cross_attn.q_linear.weight", kColumns},
    {"cross_attn.q_linear.bias", kColumns},
    {"cross_attn.k_linear.weight", kColumns, true},
    {"cross_attn.k_linear.bias", kColumns, true},
    {"cross_attn.v_linear.weight", kColumns, true},
    {"cross_attn.v_linear.bias", kColumns, true},
    {"cross_attn.k_norm.weight", kColumns, true},
    {"mlp.inverted_conv.value.weight", kColumns},
    {"mlp.inverted_conv.value.bias", kColumns},
    {"mlp.inverted_conv.gate.weight", kColumns},
    {"mlp.inverted_conv.gate.bias", kColumns},
    {"mlp.depth_conv.value.weight", kColumns},
    {"mlp.depth_conv.value.bias", kColumns},
    {"mlp.depth_conv.gate.weight", kColumns},
    {"mlp.depth_conv.gate.bias", kColumns},
    {"mlp.point_conv.conv.weight", kRows},
};

std::vector<NamePattern> together(std::initializer_list<std::span<const NamePattern>> tables) {
  std::vector<NamePattern> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

constexpr NamePattern kOfEveryType[] = {
    {"t_block.1.*", "time_embed.linear.*"},
    {"y_embedder.y_proj.fc1.*", "caption_projection.linear_1.*"},
    {"y_embedder.y_proj.fc2.*", "caption_projection.linear_2.*"},
    {"attention_y_norm.*", "caption_norm.*"},
    {"final_layer.linear.*", "proj_out.*"},
    {"final_layer.scale_shift_table", "scale_shift_table"},
    {"blocks.#.scale_shift_table", "transformer_blocks.#.scale_shift_table"},
    {"blocks.#.attn.q.*", "transformer_blocks.#.attn1.to_q.*"},
    {"blocks.#.attn.k.*", "transformer_blocks.#.attn1.to_k.*"},
    {"blocks.#.attn.v.*", "transformer_blocks.#.attn1.to_v.*"},
    {"blocks.#.attn.q_norm.*", "transformer_blocks.#.attn1.norm_q.*"},
    {"blocks.#.attn.k_norm.*", "transformer_blocks.#.attn1.norm_k.*"},
    {"blocks.#.attn.proj.*", "transformer_blocks.#.attn1.to_out.0.*"},
    {"blocks.#.cross_attn.q_linear.*", "transformer_blocks.#.attn2.to_q.*"},
    {"blocks.#.cross_attn.k_linear.*", "transformer_blocks.#.attn2.to_k.*"},
    {"blocks.#.cross_attn.v_linear.*", "transformer_blocks.#.attn2.to_v.*"},
    {"blocks.#.cross_attn.q_norm.*", "transformer_blocks.#.attn2.norm_q.*"},
    {"blocks.#.cross_attn.k_norm.*", "transformer_blocks.#.attn2.norm_k.*"},
    {"blocks.#.cross_attn.proj.*", "transformer_blocks.#.attn2.to_out.0.*"},
    {"blocks.#.mlp.inverted_conv.value.*", "transformer_blocks.#.ff.conv_inverted.0of2.*"},
    {"blocks.#.mlp.inverted_conv.gate.*", "transformer_blocks.#.ff.conv_inverted.1of2.*"},
    {"blocks.#.mlp.depth_conv.value.*", "transformer_blocks.#.ff.conv_depth.0of2.*"},
    {"blocks.#.mlp.depth_conv.gate.*", "transformer_blocks.#.ff.conv_depth.1of2.*"},
    {"blocks.#.mlp.point_conv.conv.*", "transformer_blocks.#.ff.conv_point.*"},
    {"blocks.#.mlp.t_conv.*", "transformer_blocks.#.ff.conv_temp.*"},
};
constexpr NamePattern kPatches2d[] = {{"x_embedder.proj.*", "patch_embed.proj.*"}};
constexpr NamePattern kPatches3d[] = {{"x_embedder.proj.*", "patch_embedding.*"}};
constexpr NamePattern kTimeNames[] = {
    {"t_embedder.mlp.0.*", "time_embed.emb.timestep_embedder.linear_1.*"},
    {"t_embedder.mlp.2.*", "time_embed.emb.timestep_embedder.linear_2.*"},
};
constexpr NamePattern kGuidedTimeNames[] = {
    {"t_embedder.mlp.0.*", "time_embed.timestep_embedder.linear_1.*"},
    {"t_embedder.mlp.2.*", "time_embed.timestep_embedder.linear_2.*"},
    {"cfg_embedder.mlp.0.*", "time_embed.guidance_embedder.linear_1.*"},
    {"cfg_embedder.mlp.2.*", "time_embed.guidance_embedder.linear_2.*"},
};

}  // namespace

plan::UnitSpec stem_spec(const Config& c) {
  UnitParameters p("stem", "stem", "");
  const int64_t d = c.dim();
  std::vector<int64_t> patches = {d, c.in_channels, c.patch[1], c.patch[2]};
  if (c.is_video()) patches.insert(patches.begin() + 2, c.patch[0]);
  p.linear("x_embedder.proj", patches);
  p.linear("y_embedder.y_proj.fc1", d, c.caption_dim);
  p.linear("y_embedder.y_proj.fc2", d, d);
  p.add("attention_y_norm.weight", {d});
  for (const char* embedder : {"t_embedder.mlp.", "cfg_embedder.mlp."}) {
    if (embedder[0] == 'c' && !c.has_guidance()) continue;
    p.linear(std::string(embedder) + "0", d, kFrequencies);
    p.linear(std::string(embedder) + "2", d, d);
  }
  p.linear("t_block.1", 6 * d, d);
  return p.spec;
}

plan::UnitSpec block_spec(const Config& c, int64_t index) {
  const std::string name = "blocks." + std::to_string(index);
  UnitParameters p(name, "block", name + ".");
  p.spec.narrow = true;
  const int64_t d = c.dim(), hidden = c.hidden();
  const auto norm = [&](const std::string& site) {
    if (c.qk_norm) p.add(site + ".weight", {d});
  };
  p.add("scale_shift_table", {6, d});
  for (const char* site : {"attn.q", "attn.k", "attn.v"}) p.linear(site, d, d, /*bias=*/false);
  norm("attn.q_norm"), norm("attn.k_norm");
  p.linear("attn.proj", d, d);
  for (const char* site : {"cross_attn.q_linear", "cross_attn.k_linear", "cross_attn.v_linear"}) p.linear(site, d, d);
  norm("cross_attn.q_norm"), norm("cross_attn.k_norm");
  p.linear("cross_attn.proj", d, d);
  for (const char* half : {"value", "gate"}) p.linear(std::string("mlp.inverted_conv.") + half, {hidden, d, 1, 1});
  for (const char* half : {"value", "gate"}) p.linear(std::string("mlp.depth_conv.") + half, {hidden, 1, 3, 3});
  p.linear("mlp.point_conv.conv", {d, hidden, 1, 1}, /*bias=*/false);
  if (c.is_video()) p.linear("mlp.t_conv", {d, d, 3, 1}, /*bias=*/false);
  return p.sharded(kShards);
}

plan::UnitSpec head_spec(const Config& c) {
  UnitParameters p("head", "head", "final_layer.");
  p.add("scale_shift_table", {2, c.dim()});
  p.linear("linear", c.patch_size() * c.out_channels, c.dim());
  return p.spec;
}

Initial initial_values(const plan::ParamSpec& param, bool released) {
  const std::string_view name = param.name;
  const auto has = [&](std::string_view text) { return name.find(text) != name.npos; };
  if (name.ends_with(".bias") || has(".t_conv.")) return Initial::constant(0);
  if (name.ends_with("scale_shift_table"))
    return Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  if (name == "attention_y_norm.weight") return Initial::constant(0.01);
  if (has("_norm.")) return Initial::constant(1);
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.numel()) / out;
  if (has("_embedder.mlp.") || has(".y_proj.") || name.starts_with("t_block."))
    return released ? Initial::normal(0.02) : Initial::embedding(in, out);
  if (has("_conv.")) return {Initial::Kind::uniform, 1 / std::sqrt(in)};  // PyTorch's own, of convolutions
  return Initial::xavier(in, out);
}

const std::vector<NamePattern>& official_names() {
  static const std::vector<NamePattern> table = {
      {"blocks.#.attn.q.*", "blocks.#.attn.qkv.0of3.*"},
      {"blocks.#.attn.k.*", "blocks.#.attn.qkv.1of3.*"},
      {"blocks.#.attn.v.*", "blocks.#.attn.qkv.2of3.*"},
      {"blocks.#.cross_attn.k_linear.*", "blocks.#.cross_attn.kv_linear.0of2.*"},
      {"blocks.#.cross_attn.v_linear.*", "blocks.#.cross_attn.kv_linear.1of2.*"},
      {"blocks.#.mlp.inverted_conv.value.*", "blocks.#.mlp.inverted_conv.conv.0of2.*"},
      {"blocks.#.mlp.inverted_conv.gate.*", "blocks.#.mlp.inverted_conv.conv.1of2.*"},
      {"blocks.#.mlp.depth_conv.value.*", "blocks.#.mlp.depth_conv.conv.0of2.*"},
      {"blocks.#.mlp.depth_conv.gate.*", "blocks.#.mlp.depth_conv.conv.1of2.*"},
  };
  return table;
}

const std::vector<NamePattern>& diffusers_names(Type type) {
  static const std::vector<NamePattern> image = together({kPatches2d, kTimeNames, kOfEveryType}),
                                        sprint = together({kPatches2d, kGuidedTimeNames, kOfEveryType}),
                                        video = together({kPatches3d, kTimeNames, kOfEveryType});
  return type == Type::image ? image : type == Type::sprint ? sprint : video;
}

}  // namespace tessera::models::sana
