#include "tessera/models/wan/parameters.h"

#include "tessera/models/common/unit_parameters.h"

namespace tessera::models::wan {

namespace {

/// By heads and by the feed-forward's width. Keys and values of the conditioning are computed from rows that every
/// rank has.
constexpr Shard kShards[] = {
    {"attn.q.weight", plan::Split::column_parallel},
    {"attn.q.bias", plan::Split::column_parallel},
    {"attn.norm_q.weight", plan::Split::column_parallel},
    {"self_attn.k.weight", plan::Split::column_parallel},
    {"self_attn.k.bias", plan::Split::column_parallel},
    {"self_attn.v.weight", plan::Split::column_parallel},
    {"self_attn.v.bias", plan::Split::column_parallel},
    {"self_attn.norm_k.weight", plan::Split::column_parallel},
    {"cross_attn.k.weight", plan::Split::column_parallel, true},
    {"cross_attn.k.bias", plan::Split::column_parallel, true},
    {"cross_attn.v.weight", plan::Split::column_parallel, true},
    {"cross_attn.v.bias", plan::Split::column_parallel, true},
    {"cross_attn.norm_k.weight", plan::Split::column_parallel, true},
    {"cross_attn.k_img.weight", plan::Split::column_parallel, true},
    {"cross_attn.k_img.bias", plan::Split::column_parallel, true},
    {"cross_attn.v_img.weight", plan::Split::column_parallel, true},
    {"cross_attn.v_img.bias", plan::Split::column_parallel, true},
    {"cross_attn.norm_k_img.weight", plan::Split::column_parallel, true},
    {"attn.o.weight", plan::Split::row_parallel},
    {"ffn.0.weight", plan::Split::column_parallel},
    {"ffn.0.bias", plan::Split::column_parallel},
    {"ffn.2.weight", plan::Split::row_parallel},
};

}  // namespace

plan::UnitSpec stem_spec(const Config& c) {
  UnitParameters p("stem", "stem", "");
  p.linear("patch_embedding", {c.dim, c.in_dim, c.patch[0], c.patch[1], c.patch[2]});
  p.linear("text_embedding.0", c.dim, c.text_dim);
  p.linear("text_embedding.2", c.dim, c.dim);
  if (c.has_image_branch()) {
    if (c.type == Type::flf2v) p.add("img_emb.emb_pos", {1, c.image_rows(), c.image_dim});
    p.norm("img_emb.proj.0", c.image_dim);
    p.linear("img_emb.proj.1", c.image_dim, c.image_dim);
    p.linear("img_emb.proj.3", c.dim, c.image_dim);
    p.norm("img_emb.proj.4", c.dim);
  }
  p.linear("time_embedding.0", c.dim, c.freq_dim);
  p.linear("time_embedding.2", c.dim, c.dim);
  p.linear("time_projection.1", 6 * c.dim, c.dim);
  return p.spec;
}

plan::UnitSpec block_spec(const Config& c, int64_t index) {
  const std::string name = "blocks." + std::to_string(index);
  UnitParameters p(name, "block", name + ".");
  p.spec.narrow = true;
  const auto attention = [&](const std::string& site) {
    p.linear(site + ".q", c.dim, c.dim);
    p.linear(site + ".k", c.dim, c.dim);
    p.linear(site + ".v", c.dim, c.dim);
    p.add(site + ".norm_q.weight", {c.dim});
    p.add(site + ".norm_k.weight", {c.dim});
  };
  p.add("modulation", {1, 6, c.dim});
  attention("self_attn");
  p.linear("self_attn.o", c.dim, c.dim);
  p.norm("norm3", c.dim);
  attention("cross_attn");
  if (c.has_image_branch()) {
    p.linear("cross_attn.k_img", c.dim, c.dim);
    p.linear("cross_attn.v_img", c.dim, c.dim);
    p.add("cross_attn.norm_k_img.weight", {c.dim});
  }
  p.linear("cross_attn.o", c.dim, c.dim);
  p.linear("ffn.0", c.ffn_dim, c.dim);
  p.linear("ffn.2", c.dim, c.ffn_dim);
  return p.sharded(kShards);
}

plan::UnitSpec head_spec(const Config& c) {
  UnitParameters p("head", "head", "head.");
  p.add("modulation", {1, 2, c.dim});
  p.linear("head", c.patch_size() * c.out_dim, c.dim);
  return p.spec;
}

Initial initial_values(const plan::ParamSpec& param, bool released) {
  const std::string_view name = param.name;
  if (name.ends_with(".bias") || name == "head.head.weight" || name == "img_emb.emb_pos") return Initial::constant(0);
  if (name.ends_with("modulation")) return Initial::normal(1 / std::sqrt(static_cast<double>(param.shape.back())));
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.numel()) / out;
  if (name.starts_with("text_embedding") || name.starts_with("time_embedding"))
    return released ? Initial::normal(0.02) : Initial::embedding(in, out);
  const bool image_norm = name == "img_emb.proj.0.weight" || name == "img_emb.proj.4.weight";
  if (name.find("norm") != name.npos || image_norm) return Initial::constant(1);
  return Initial::xavier(in, out);
}

const std::vector<NamePattern>& diffusers_names() {
  static const std::vector<NamePattern> table = {
      {"text_embedding.0.*", "condition_embedder.text_embedder.linear_1.*"},
      {"text_embedding.2.*", "condition_embedder.text_embedder.linear_2.*"},
      {"time_embedding.0.*", "condition_embedder.time_embedder.linear_1.*"},
      {"time_embedding.2.*", "condition_embedder.time_embedder.linear_2.*"},
      {"time_projection.1.*", "condition_embedder.time_proj.*"},
      {"img_emb.proj.0.*", "condition_embedder.image_embedder.norm1.*"},
      {"img_emb.proj.1.*", "condition_embedder.image_embedder.ff.net.0.proj.*"},
      {"img_emb.proj.3.*", "condition_embedder.image_embedder.ff.net.2.*"},
      {"img_emb.proj.4.*", "condition_embedder.image_embedder.norm2.*"},
      {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
      {"head.modulation", "scale_shift_table"},
      {"head.head.*", "proj_out.*"},
      {"blocks.#.modulation", "blocks.#.scale_shift_table"},
      {"blocks.#.self_attn.q.*", "blocks.#.attn1.to_q.*"},
      {"blocks.#.self_attn.k.*", "blocks.#.attn1.to_k.*"},
      {"blocks.#.self_attn.v.*", "blocks.#.attn1.to_v.*"},
      {"blocks.#.self_attn.o.*", "blocks.#.attn1.to_out.0.*"},
      {"blocks.#.self_attn.norm_*", "blocks.#.attn1.norm_*"},
      {"blocks.#.cross_attn.q.*", "blocks.#.attn2.to_q.*"},
      {"blocks.#.cross_attn.k.*", "blocks.#.attn2.to_k.*"},
      {"blocks.#.cross_attn.v.*", "blocks.#.attn2.to_v.*"},
      {"blocks.#.cross_attn.o.*", "blocks.#.attn2.to_out.0.*"},
      {"blocks.#.cross_attn.k_img.*", "blocks.#.attn2.add_k_proj.*"},
      {"blocks.#.cross_attn.v_img.*", "blocks.#.attn2.add_v_proj.*"},
      {"blocks.#.cross_attn.norm_k_img.*", "blocks.#.attn2.norm_added_k.*"},
      {"blocks.#.cross_attn.norm_*", "blocks.#.attn2.norm_*"},
      {"blocks.#.norm3.*",
       "blocks.#.norm2.*"},  // diffusers counts norms in order of use, and only this one has weights
      {"blocks.#.ffn.0.*", "blocks.#.ffn.net.0.proj.*"},
      {"blocks.#.ffn.2.*", "blocks.#.ffn.net.2.*"},
  };
  return table;
}

}  // namespace tessera::models::wan
