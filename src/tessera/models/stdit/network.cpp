#include "tessera/models/stdit/spec.h"

namespace tessera::models::stdit {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;
using net::Norm;

namespace {

enum Cond { kTime, kModulation, kContext, kKept };  // order of the shared conditioning
const net::Linear kByHeads{.split = kColumns}, kOfText{.space = kText, .split = kColumns}, kFromHeads{.split = kRows};

class Stem final : public FamilyUnit<Config> {
 public:
  explicit Stem(const Config& config) : FamilyUnit(config, "stem", "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const auto& given = in.stream;
    const net::Linear patches{.out = c_.hidden_size, .kernel = {1, c_.patch, c_.patch}};
    Tensor x = ctx.linear("x_embedder.proj", given[kPatches], patches) + given[kPositions];  // x [T, d]
    if (c_.cond) {
      const Tensor beside = ctx.linear("x_embedder_cond.proj", given[kGivenPatches], patches) +
                            ctx.linear("x_embedder_cond_mask.proj", given[kMaskPatches], patches);
      const Tensor has = given[kHasGiven].expand({-1, c_.hidden_size}).contiguous();  // [R, d] of 0 and 1
      x = ctx.residual("cond_sum", x, beside, &has);
    }
    const Tensor e = embedded(ctx, "t_embedder", given[kTimes]) + embedded(ctx, "fps_embedder", given[kRates]);
    const Tensor e6 = ctx.linear("t_block.1", e, {.act = Act::silu, .out = 6 * c_.hidden_size})
                          .view({-1, 6, c_.hidden_size});  // [R, 6, d]
    const Tensor words = ctx.linear("y_embedder.y_proj.fc1", given[kTexts], {.space = kText, .out = c_.hidden_size});
    const Tensor context = ctx.linear("y_embedder.y_proj.fc2", words, {.act = Act::gelu_tanh, .space = kText});
    return {{x}, {e, e6, context, given[kKeptPlaces]}};  // context [n, d]
  }
  std::vector<std::string_view> order() const override {
    return {"x_embedder.", "x_embedder_cond.", "x_embedder_cond_mask.", "t_embedder", "fps_embedder"};
  }

 private:
  Tensor embedded(Context& ctx, const std::string& site, const Tensor& sinusoid) const {  // [R, d]
    return ctx.linear(site + ".mlp.2", ctx.linear(site + ".mlp.0", sinusoid, {.out = c_.hidden_size}),
                      {.act = Act::silu});
  }
};

/// Attention within frames, or over them.
class Block final : public FamilyUnit<Config> {
 public:
  Block(const Config& config, bool temporal, int64_t index)
      : FamilyUnit(config, temporal ? "temporal_blocks" : "spatial_blocks",
                   temporal ? "temporal_block" : "spatial_block", index),
        temporal_(temporal) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, d]
    const auto m = ctx.param_plus("scale_shift_table", {6, c_.hidden_size}, in.cond[kModulation])
                       .unbind(1);  // m[6] of [R, d]: shift, scale, gate, of the attention and of the feed-forward
    const auto modulated = [](const Tensor& shift, const Tensor& scale) {
      return Norm{.shift = &shift, .scale = &scale};
    };
    x = ctx.residual("gate1", x, self_attention(ctx, ctx.norm("norm1", x, modulated(m[0], m[1]))), &m[2],
                     /*space=*/0, /*multiplied=*/true);
    x = ctx.residual("sum", x, cross_attention(ctx, x, in.cond[kContext]));
    x = ctx.residual("gate2", x, feed_forward(ctx, ctx.norm("norm2", x, modulated(m[3], m[4]))), &m[5]);
    return {{x}, {}};
  }
  std::string_view output_site() const override { return "gate2"; }
  std::vector<std::string_view> order() const override {
    return {"scale_shift_table", "attn.q.", "attn.k.", "attn.v."};
  }

 private:
  size_t table() const { return temporal_ ? kOverFrames : kWithinFrames; }

  Tensor self_attention(Context& ctx, const Tensor& y) const {
    const Norm by_head{
        .kind = Norm::rms, .heads = c_.num_heads, .rope = temporal_ || c_.spatial_rope ? c_.num_heads : 0};
    const int rotated = temporal_ || !c_.spatial_rope ? kTokens : kSameTokens;
    const Tensor q = ctx.ahead("attn", ctx.norm("attn.q_norm", ctx.linear("attn.q", y, kByHeads), by_head, rotated));
    const Tensor k = ctx.ahead("attn", ctx.norm("attn.k_norm", ctx.linear("attn.k", y, kByHeads), by_head, rotated));
    const Tensor v = ctx.linear("attn.v", y, kByHeads);  // q, k, v [T, d]
    const Tensor out = ctx.attention("attn", q, k, v, c_.num_heads, ctx.tokens().segments.at(table()));
    return ctx.linear("attn.proj", out, kFromHeads);
  }

  /// Of x as it is, without a norm before it.
  Tensor cross_attention(Context& ctx, const Tensor& x, const Tensor& context) const {
    const Tensor q = ctx.linear("cross_attn.q_linear", x, kByHeads);  // [T, d]
    const Tensor k = ctx.linear("cross_attn.k_linear", context, kOfText);
    const Tensor v = ctx.linear("cross_attn.v_linear", context, kOfText);  // k, v [n, d]
    const net::Segments by_sample{.q = kTokens, .k = kText};
    const Tensor out = ctx.attention("cross_attn", q, k, v, c_.num_heads,
                                     c_.cond ? ctx.tokens().segments.at(kFramesToText) : by_sample);
    return ctx.linear("cross_attn.proj", out, kFromHeads);
  }

  Tensor feed_forward(Context& ctx, const Tensor& y) const {
    const Tensor wide = ctx.linear("mlp.fc1", y, {.out = c_.mlp_dim(), .split = kColumns});
    return ctx.linear("mlp.fc2", wide, {.act = Act::gelu_tanh, .out = c_.hidden_size, .split = kRows});
  }

  const bool temporal_;
};

class Head final : public FamilyUnit<Config> {
 public:
  explicit Head(const Config& config) : FamilyUnit(config, "head", "final_layer.") {}

  /// [Note: twice modulated] Its program modulates all frames for the timestep, and from the result it makes that of the
  /// given frames: another norm, modulated for timestep 0. Released weights were trained so.
  Flow forward(Context& ctx, const Flow& in) const override {
    const auto s = (ctx.param("scale_shift_table", {2, c_.hidden_size}) + in.cond[kTime].unsqueeze(1))
                       .unbind(1);  // s[2] of [R, d]
    const Tensor shift = of_time(s[0]), scale = of_time(s[1]);
    const Tensor y = ctx.norm("norm", in.stream[0], {.shift = &shift, .scale = &scale});
    const Tensor again = ctx.norm("norm_given", y, {.shift = &s[0], .scale = &s[1]});
    const Tensor given = at::zeros_like(s[0]);  // gate: 1 for the rows of given frames
    given.view({-1, 2, c_.hidden_size}).select(1, 1).fill_(1);
    const Tensor z =
        ctx.linear("linear", ctx.residual("given", y, again - y, &given), {.out = c_.places() * c_.out_channels()});
    return {{ctx.residual("kept", at::zeros_like(z), z, &in.cond[kKept], kSameTokens)}, {}};
  }

 private:
  /// The timestep's row of each pair in place of both.
  static Tensor of_time(const Tensor& table) {
    const Tensor pairs = table.view({-1, 2, table.size(1)});
    return pairs.narrow(1, 0, 1).expand_as(pairs).reshape(table.sizes());
  }
};

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Stem>(config));
  for (int64_t i = 0; i < config.depth; ++i)
    for (const bool temporal : {false, true}) units.push_back(std::make_unique<Block>(config, temporal, i));
  units.push_back(std::make_unique<Head>(config));
  const Tensor patches = net::sizes_of(1, config.in_channels * config.places()),
               times = net::sizes_of(2, kFrequencies);  // a pair of modulation rows
  net::Flow inputs{{patches, net::sizes_of(1, config.hidden_size), net::sizes_of(1, config.caption_dim), times, times,
                    net::sizes_of(1, config.places() * config.out_channels()), patches, patches, net::sizes_of(2, 1)},
                   {}};
  net::Tokens tokens;
  tokens.spaces.resize(kSameTokens);
  tokens.segments.resize(kFramesToText + 1);
  net::declare(units, std::move(inputs), tokens);
  return units;
}

}  // namespace tessera::models::stdit
