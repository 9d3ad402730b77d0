#include "tessera/models/common/two_streams.h"
#include "tessera/models/opensora/spec.h"

namespace tessera::models::opensora {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;

namespace {

/// The blocks with two streams. Modules keep the order of the released files.
TwoStreams two_streams(const Config& c) {
  const auto stream = [](int space, const std::string& name) {
    const std::string attn = name + "_attn.";
    return Stream{.space = space,
                  .modulation = name + "_mod.lin",
                  .q = attn + "q_proj",
                  .k = attn + "k_proj",
                  .v = attn + "v_proj",
                  .q_norm = attn + "norm.query_norm",
                  .k_norm = attn + "norm.key_norm",
                  .out = attn + "proj",
                  .up = name + "_mlp.0",
                  .down = name + "_mlp.2"};
  };
  return {.heads = c.num_heads,
          .width = c.hidden_size,
          .mlp_dim = c.mlp_dim(),
          .rope = net::RopeStyle::half_split,
          .video = stream(kVideo, "img"),
          .text = stream(kText, "txt"),
          .order = {"img_mod", "txt_mod", "img_attn.q", "img_attn.k", "img_attn.v", "img_attn.", "img_mlp",
                    "txt_attn.q", "txt_attn.k", "txt_attn.v", "txt_attn."}};
}

class Stem final : public FamilyUnit<Config> {
 public:
  explicit Stem(const Config& config) : FamilyUnit(config, "stem", "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    size_t next = 0;
    const int64_t d = c_.hidden_size;
    const net::Linear of_video{.space = kVideo, .out = d};
    const net::Space& words = ctx.tokens().space(kText);
    Tensor video = ctx.linear("img_in", ctx.part(in.stream[next++], kVideo), of_video);
    if (c_.cond) video = video + ctx.linear("cond_in", ctx.part(in.stream[next++], kVideo), of_video);
    const Tensor text = in.stream[next++].slice(0, words.begin, words.begin + words.count());  // the rows of this rank
    const Tensor x =
        ctx.join({{kVideo, video}, {kText, ctx.linear("txt_in", text, {.space = kText, .out = d})}});  // x [T, d]
    const auto embedded = [&](const std::string& site) {
      const Tensor& row = in.stream[next++];
      return ctx.linear(site + ".out_layer", ctx.linear(site + ".in_layer", row, {.out = d}), {.act = Act::silu});
    };
    Tensor vec = embedded("time_in");  // vec [B, d]
    if (c_.guidance) vec = vec + embedded("guidance_in");
    return {{x}, {vec + embedded("vector_in")}};
  }
};

class SingleBlock final : public FamilyUnit<Config> {
 public:
  SingleBlock(const Config& config, int64_t index) : FamilyUnit(config, "single_blocks", "single_block", index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor &x = in.stream[0], &vec = in.cond[0];
    const Tensor modulation = ctx.linear("modulation.lin", vec, {.act = Act::silu, .out = 3 * c_.hidden_size});
    const auto m = modulation_rows(modulation, modulation, vec);  // m[3] of [2 B, d]: shift, scale, gate
    const Tensor y = ctx.norm("norm", x, modulated(m[0], m[1]));
    const net::Linear by_heads{.split = kColumns};
    const Tensor q = ctx.norm("norm.query_norm", ctx.linear("q_proj", y, by_heads), by_head(c_.num_heads));
    const Tensor k = ctx.norm("norm.key_norm", ctx.linear("k_proj", y, by_heads), by_head(c_.num_heads));
    const Tensor v = ctx.linear("v_proj", y, by_heads);
    const Tensor wide = ctx.linear("mlp", y, {.out = c_.mlp_dim(), .split = kColumns});
    // one linear of [attention; feed-forward], as the sum of those of its two parts
    const Tensor heard = joint_attention(ctx, q, k, v, c_.num_heads, net::RopeStyle::half_split);
    const Tensor attended = ctx.linear("linear2.attn", heard, {.split = kRows, .bias = false});
    const Tensor fed = ctx.linear("linear2.mlp", wide, {.act = Act::gelu_tanh, .out = c_.hidden_size, .split = kRows});
    return {{ctx.residual("gate", x, ctx.residual("sum", attended, fed), &m[2])}, {}};
  }
  std::string_view output_site() const override { return "gate"; }
  std::vector<std::string_view> order() const override {
    return {"modulation", "q_proj", "k_proj", "v_proj", "norm.", "linear2.attn"};
  }
};

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Stem>(config));
  for (int64_t i = 0; i < config.depth; ++i) units.push_back(std::make_unique<TwoStreamBlock>(two_streams(config), i));
  for (int64_t i = 0; i < config.depth_single; ++i) units.push_back(std::make_unique<SingleBlock>(config, i));
  units.push_back(std::make_unique<TwoStreamHead>(config.in_channels));
  // a video token, then one of text
  net::Tokens tokens;
  tokens.spaces.resize(kText);
  tokens.spaces[kVideo - 1].ranges = {{0, 1}};
  tokens.spaces[kText - 1].ranges = {{1, 2}};
  tokens.spaces[kText - 1].offsets = {0, 1};
  net::Flow inputs{{net::sizes_of(2, config.in_channels)}, {}};
  if (config.cond) inputs.stream.push_back(net::sizes_of(2, config.cond_channels()));
  inputs.stream.push_back(net::sizes_of(1, config.context_dim));
  inputs.stream.push_back(net::sizes_of(1, kFrequencies));
  if (config.guidance) inputs.stream.push_back(net::sizes_of(1, kFrequencies));
  inputs.stream.push_back(net::sizes_of(1, config.pooled_dim));
  net::declare(units, std::move(inputs), tokens);
  return units;
}

}  // namespace tessera::models::opensora
