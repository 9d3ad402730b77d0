#include "tessera/models/opensora/parameters.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/models/common/unit_parameters.h"

namespace tessera::models::opensora {

namespace {

constexpr plan::Split kColumns = plan::Split::column_parallel, kRows = plan::Split::row_parallel;

/// By heads, and by the channels of the feed-forward. Modulations are computed from one row a sample, on every rank.
constexpr Shard kShards[] = {
    {"q_proj.weight", kColumns},    {"q_proj.bias", kColumns},     {"k_proj.weight", kColumns},
    {"k_proj.bias", kColumns},      {"v_proj.weight", kColumns},   {"v_proj.bias", kColumns},
    {"attn.proj.weight", kRows},    {"_mlp.0.weight", kColumns},   {"_mlp.0.bias", kColumns},
    {"_mlp.2.weight", kRows},       {".mlp.weight", kColumns},     {".mlp.bias", kColumns},
    {"linear2.attn.weight", kRows}, {"linear2.mlp.weight", kRows}, {"linear2.mlp.bias", plan::Split::none},
};

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

/// q, k, v of rows of width `dim`, and the norms of q and k by head.
void add_projections(UnitParameters& p, const std::string& site, const std::string& norm, const Config& c) {
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) p.linear(site + name, c.hidden_size, c.hidden_size);
  for (const char* name : {"query_norm.weight", "key_norm.weight"}) p.add(norm + name, {c.head_dim()});
}

UnitParameters block(const std::string& list, const std::string& kind, int64_t index) {
  const std::string name = list + "." + std::to_string(index);
  UnitParameters p(name, kind, name + ".");
  p.spec.narrow = true;
  return p;
}

}  // namespace

plan::UnitSpec stem_spec(const Config& c) {
  UnitParameters p("stem", "stem", "");
  p.linear("img_in", c.hidden_size, c.in_channels);
  if (c.cond) p.linear("cond_in", c.hidden_size, c.cond_channels());
  p.linear("txt_in", c.hidden_size, c.context_dim);
  const auto embedder = [&](const std::string& site, int64_t in) {
    p.linear(site + ".in_layer", c.hidden_size, in);
    p.linear(site + ".out_layer", c.hidden_size, c.hidden_size);
  };
  embedder("time_in", kFrequencies);
  if (c.guidance) embedder("guidance_in", kFrequencies);
  embedder("vector_in", c.pooled_dim);
  return p.spec;
}

plan::UnitSpec double_block_spec(const Config& c, int64_t index) {
  UnitParameters p = block("double_blocks", "double_block", index);
  const int64_t d = c.hidden_size;
  for (const char* stream : {"img", "txt"}) p.linear(std::string(stream) + "_mod.lin", 6 * d, d);
  for (const std::string stream : {"img", "txt"}) {
    add_projections(p, stream + "_attn.", stream + "_attn.norm.", c);
    p.linear(stream + "_attn.proj", d, d);
    p.linear(stream + "_mlp.0", c.mlp_dim(), d);
    p.linear(stream + "_mlp.2", d, c.mlp_dim());
  }
  return p.sharded(kShards);
}

plan::UnitSpec single_block_spec(const Config& c, int64_t index) {
  UnitParameters p = block("single_blocks", "single_block", index);
  const int64_t d = c.hidden_size;
  p.linear("modulation.lin", 3 * d, d);
  add_projections(p, "", "norm.", c);
  p.linear("linear2.attn", d, d, /*bias=*/false);
  p.linear("mlp", c.mlp_dim(), d);
  p.linear("linear2.mlp", d, c.mlp_dim());
  return p.sharded(kShards);
}

plan::UnitSpec head_spec(const Config& c) {
  UnitParameters p("head", "head", "final_layer.");
  for (const char* site : {"shift", "scale"}) p.linear(site, c.hidden_size, c.hidden_size);
  p.linear("linear", c.in_channels, c.hidden_size);
  return p.spec;
}

Initial initial_values(const plan::ParamSpec& param, bool released) {
  if (param.name.ends_with("_norm.weight")) return Initial::constant(1);
  if (param.name.ends_with(".bias") || param.name.starts_with("cond_in.")) return Initial::constant(0);
  const auto out = static_cast<double>(param.shape.front()), in = static_cast<double>(param.shape.back());
  const bool embeds = std::ranges::any_of(std::array{"txt_in.", "time_in.", "vector_in.", "guidance_in."},
                                          [&](const char* site) { return param.name.starts_with(site); });
  if (embeds && !released) return Initial::embedding(in, out);
  return {Initial::Kind::uniform, 1 / std::sqrt(in)};
}

const std::vector<NamePattern>& program_names(const FileForm& form) {
  return kept(form, [&] { return make_program_names(form); });
}

const std::vector<NamePattern>& diffusers_names(int64_t head_dim, int64_t mlp_ratio) {
  return kept(std::pair(head_dim, mlp_ratio), [&] { return make_diffusers_names(head_dim, mlp_ratio); });
}

}  // namespace tessera::models::opensora
