#include "tessera/models/stdit/parameters.h"

#include "tessera/models/common/unit_parameters.h"

namespace tessera::models::stdit {

namespace {

constexpr plan::Split kColumns = plan::Split::column_parallel, kRows = plan::Split::row_parallel;

/// By heads, and by the width of the feed-forward. Keys and values of captions are computed from rows that every rank
/// has.
constexpr Shard kShards[] = {
    {"attn.q.weight", kColumns},
    {"attn.q.bias", kColumns},
    {"attn.k.weight", kColumns},
    {"attn.k.bias", kColumns},
    {"attn.v.weight", kColumns},
    {"attn.v.bias", kColumns},
    {"attn.proj.weight", kRows},
    {"cross_attn.q_linear.weight", kColumns},
    {"cross_attn.q_linear.bias", kColumns},
    {"cross_attn.k_linear.weight", kColumns, true},
    {"cross_attn.k_linear.bias", kColumns, true},
    {"cross_attn.v_linear.weight", kColumns, true},
    {"cross_attn.v_linear.bias", kColumns, true},
    {"mlp.fc1.weight", kColumns},
    {"mlp.fc1.bias", kColumns},
    {"mlp.fc2.weight", kRows},
};

}  // namespace

plan::UnitSpec stem_spec(const Config& c) {
  UnitParameters p("stem", "stem", "");
  const int64_t d = c.hidden_size;
  const auto patches = [&](const std::string& site) { p.linear(site, {d, c.in_channels, 1, c.patch, c.patch}); };
  patches("x_embedder.proj");
  if (c.cond) patches("x_embedder_cond.proj"), patches("x_embedder_cond_mask.proj");
  for (const char* embedder : {"t_embedder.mlp.", "fps_embedder.mlp."}) {
    p.linear(std::string(embedder) + "0", d, kFrequencies);
    p.linear(std::string(embedder) + "2", d, d);
  }
  p.linear("t_block.1", 6 * d, d);
  p.linear("y_embedder.y_proj.fc1", d, c.caption_dim);
  p.linear("y_embedder.y_proj.fc2", d, d);
  return p.spec;
}

plan::UnitSpec block_spec(const Config& c, bool temporal, int64_t index) {
  const std::string kind = temporal ? "temporal_block" : "spatial_block", name = kind + "s." + std::to_string(index);
  UnitParameters p(name, kind, name + ".");
  p.spec.narrow = true;
  const int64_t d = c.hidden_size;
  p.add("scale_shift_table", {6, d});
  for (const char* site : {"attn.q", "attn.k", "attn.v"}) p.linear(site, d, d);
  for (const char* norm : {"attn.q_norm.weight", "attn.k_norm.weight"}) p.add(norm, {c.head_dim()});
  p.linear("attn.proj", d, d);
  for (const char* site : {"cross_attn.q_linear", "cross_attn.k_linear", "cross_attn.v_linear", "cross_attn.proj"})
    p.linear(site, d, d);
  p.linear("mlp.fc1", c.mlp_dim(), d);
  p.linear("mlp.fc2", d, c.mlp_dim());
  return p.sharded(kShards);
}

plan::UnitSpec head_spec(const Config& c) {
  UnitParameters p("head", "head", "final_layer.");
  p.add("scale_shift_table", {2, c.hidden_size});
  p.linear("linear", c.places() * c.out_channels(), c.hidden_size);
  return p.spec;
}

Initial initial_values(const plan::ParamSpec& param, bool released) {
  const std::string_view name = param.name;
  const auto begins = [&](std::string_view text) { return name.starts_with(text); };
  if (name.ends_with("_norm.weight")) return Initial::constant(1);
  if (name.ends_with("scale_shift_table"))
    return Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.numel()) / out;
  if (begins("x_embedder_cond") || begins("fps_embedder.mlp.2.")) return Initial::constant(0);
  if (begins("temporal_blocks.") && (name.ends_with(".proj.weight") || name.ends_with(".fc2.weight")))
    return Initial::constant(0);
  if (name.ends_with(".bias")) return Initial::constant(0);
  if (!released && (begins("t_embedder.") || begins("fps_embedder.") || begins("y_embedder.")))
    return Initial::embedding(in, out);
  if (begins("fps_embedder.")) return Initial::normal(0.02);
  if (begins("x_embedder.")) return {Initial::Kind::uniform, 1 / std::sqrt(in)};  // PyTorch's own, of convolutions
  return Initial::xavier(in, out);
}

const std::vector<NamePattern>& official_names() {
  static const std::vector<NamePattern> table = {
      {"spatial_blocks.#.attn.q.*", "spatial_blocks.#.attn.qkv.0of3.*"},
      {"spatial_blocks.#.attn.k.*", "spatial_blocks.#.attn.qkv.1of3.*"},
      {"spatial_blocks.#.attn.v.*", "spatial_blocks.#.attn.qkv.2of3.*"},
      {"spatial_blocks.#.cross_attn.k_linear.*", "spatial_blocks.#.cross_attn.kv_linear.0of2.*"},
      {"spatial_blocks.#.cross_attn.v_linear.*", "spatial_blocks.#.cross_attn.kv_linear.1of2.*"},
      {"temporal_blocks.#.attn.q.*", "temporal_blocks.#.attn.qkv.0of3.*"},
      {"temporal_blocks.#.attn.k.*", "temporal_blocks.#.attn.qkv.1of3.*"},
      {"temporal_blocks.#.attn.v.*", "temporal_blocks.#.attn.qkv.2of3.*"},
      {"temporal_blocks.#.cross_attn.k_linear.*", "temporal_blocks.#.cross_attn.kv_linear.0of2.*"},
      {"temporal_blocks.#.cross_attn.v_linear.*", "temporal_blocks.#.cross_attn.kv_linear.1of2.*"},
  };
  return table;
}

}  // namespace tessera::models::stdit
