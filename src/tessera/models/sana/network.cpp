#include "tessera/models/sana/spec.h"

#include "tessera/ops/activations.h"

namespace tessera::models::sana {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;
using net::Norm;

namespace {

enum Cond { kTime, kModulation, kContext, kLogvar };  // order of the shared conditioning
const net::Linear kByHeads{.split = kColumns}, kOfText{.space = kText, .split = kColumns}, kFromHeads{.split = kRows};
constexpr double kRmsEps = 1e-5;   // of captions, and of queries and keys of the linear attention
constexpr double kHeadEps = 1e-6;  // of the last norm, whatever norm_eps says of those of the blocks

class Stem final : public FamilyUnit<Config> {
 public:
  explicit Stem(const Config& config) : FamilyUnit(config, "stem", "") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    size_t next = 0;
    const Tensor &patches = in.stream[next++], &text = in.stream[next++], &sinusoid = in.stream[next++];
    const int64_t d = c_.dim();
    Tensor x =
        ctx.linear("x_embedder.proj", patches,
                   {.out = d, .kernel = {c_.patch.begin() + (c_.is_video() ? 0 : 1), c_.patch.end()}});  // x [T, d]
    const auto embedded = [&](const std::string& site, const Tensor& row) {
      return ctx.linear(site + ".mlp.2", ctx.linear(site + ".mlp.0", row, {.out = d}), {.act = Act::silu});
    };
    Tensor e = embedded("t_embedder", sinusoid);
    if (c_.has_guidance()) e = e + embedded("cfg_embedder", in.stream[next++]);
    if (c_.interpolation_scale) x = x + in.stream[next++];
    const Tensor e6 = ctx.linear("t_block.1", e, {.act = Act::silu, .out = 6 * d}).view({-1, 6, d});  // [R, 6, d]
    const Tensor words = ctx.linear("y_embedder.y_proj.fc1", text, {.space = kText, .out = d});
    const Tensor context = ctx.norm("attention_y_norm",
                                    ctx.linear("y_embedder.y_proj.fc2", words, {.act = Act::gelu_tanh, .space = kText}),
                                    {.kind = Norm::rms, .eps = kRmsEps}, kText);  // [n, d]
    Flow out{{x}, {e, e6, context}};
    if (c_.logvar) out.cond.push_back(ctx.linear("logvar_linear", e, {.out = 1}));  // [R, 1]
    return out;
  }
  std::vector<std::string_view> order() const override { return {"x_embedder", "y_embedder", "attention_y_norm"}; }
};

class Block final : public FamilyUnit<Config> {
 public:
  Block(const Config& config, int64_t index) : FamilyUnit(config, "blocks", "block", index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, d]
    const auto m = ctx.param_plus("scale_shift_table", {6, c_.dim()}, in.cond[kModulation])
                       .unbind(1);  // m[6] of [R, d]: shift, scale, gate, of the attention and of the feed-forward
    const auto modulated = [&](const Tensor& shift, const Tensor& scale) {
      return Norm{.eps = c_.norm_eps, .shift = &shift, .scale = &scale};
    };
    x = ctx.residual("gate1", x, linear_attention(ctx, ctx.norm("norm1", x, modulated(m[0], m[1]))), &m[2],
                     /*space=*/0, /*multiplied=*/true);
    x = ctx.residual("sum", x, cross_attention(ctx, x, in.cond[kContext]));
    x = ctx.residual("gate2", x, feed_forward(ctx, ctx.norm("norm2", x, modulated(m[3], m[4]))), &m[5]);
    return {{x}, {}};
  }
  std::string_view output_site() const override { return "gate2"; }
  std::vector<std::string_view> order() const override {
    return {
        "scale_shift_table",  "attn.q.", "attn.k.", "attn.v.", "attn.", "cross_attn.q_linear", "cross_attn.k_linear",
        "cross_attn.v_linear"};
  }

 private:
  Tensor linear_attention(Context& ctx, const Tensor& y) const {
    const net::Linear by_heads{.split = kColumns, .bias = false};
    const auto projected = [&](const char* site, const char* norm) {
      const Tensor z = ctx.linear(site, y, by_heads);
      return c_.qk_norm ? ctx.norm(norm, z, {.kind = Norm::rms, .eps = kRmsEps, .split = kColumns}) : z;
    };
    const Tensor q = projected("attn.q", "attn.q_norm"), k = projected("attn.k", "attn.k_norm");  // [T, d]
    const Tensor v = ctx.linear("attn.v", y, by_heads);
    if (!c_.is_video())
      return ctx.linear("attn.proj", ctx.linear_attention("attn", q, k, v, c_.num_heads, c_.attention_eps), kFromHeads);
    const Tensor plain_q = ops::relu(q), plain_k = ops::relu(k);
    const Tensor turned_q = ctx.rope("attn.rope_q", plain_q, c_.num_heads, net::RopeStyle::interleaved);
    const Tensor turned_k = ctx.rope("attn.rope_k", plain_k, c_.num_heads, net::RopeStyle::interleaved);
    return ctx.linear("attn.proj",
                      ctx.linear_attention("attn", plain_q, plain_k, v, c_.num_heads, c_.attention_eps,
                                           {.q = &turned_q, .k = &turned_k}),
                      kFromHeads);
  }

  /// Of x as it is, without a norm before it.
  Tensor cross_attention(Context& ctx, const Tensor& x, const Tensor& context) const {
    const auto normed = [&](const char* site, const Tensor& z, int space) {
      return c_.qk_norm ? ctx.norm(site, z, {.kind = Norm::rms, .eps = c_.cross_norm_eps, .split = kColumns}, space)
                        : z;
    };
    const Tensor q = normed("cross_attn.q_norm", ctx.linear("cross_attn.q_linear", x, kByHeads), kTokens);  // [T, d]
    const Tensor k = normed("cross_attn.k_norm", ctx.linear("cross_attn.k_linear", context, kOfText), kText);
    const Tensor v = ctx.linear("cross_attn.v_linear", context, kOfText);  // k, v [n, d]
    return ctx.linear("cross_attn.proj", ctx.attention("cross_attn", q, k, v, c_.cross_heads, {.k = kText}),
                      kFromHeads);
  }

  /// The mix-FFN: two halves [T, hidden], each seen by its neighbours in the frame, and one gates the other. Videos add
  /// a convolution over time.
  Tensor feed_forward(Context& ctx, const Tensor& y) const {
    const net::Linear wide{.out = c_.hidden(), .split = kColumns, .kernel = {1, 1}};
    const Tensor value = ctx.linear("mlp.inverted_conv.value", y, wide),
                 gate = ctx.linear("mlp.inverted_conv.gate", y, wide);
    net::Conv in_frame{.kernel = {1, 3, 3}, .split = kColumns, .silu = true};
    const Tensor near = ctx.conv("mlp.depth_conv.value", value, in_frame);
    in_frame.value = &near;
    const Tensor z = ctx.linear("mlp.point_conv.conv", ctx.conv("mlp.depth_conv.gate", gate, in_frame),
                                {.out = c_.dim(), .split = kRows, .bias = false, .kernel = {1, 1}});  // [T, d]
    if (!c_.is_video()) return z;
    const Tensor times = ctx.unfold("mlp.t_rows", z, {.kernel = {3, 1, 1}});  // [T, 3 d]
    // It reads all channels of a row: every rank of tp has its weight, and convolves its own rows.
    const net::Linear over_time{.out = c_.dim(), .bias = false, .kernel = {3, 1}};
    return ctx.residual("mlp.t_sum", z, ctx.linear("mlp.t_conv", times, over_time));
  }
};

class Head final : public FamilyUnit<Config> {
 public:
  explicit Head(const Config& config) : FamilyUnit(config, "head", "final_layer.") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const auto s =
        (ctx.param("scale_shift_table", {2, c_.dim()}) + in.cond[kTime].unsqueeze(1)).unbind(1);  // s[2] of [R, d]
    const Tensor y = ctx.norm("norm", in.stream[0], {.eps = kHeadEps, .shift = &s[0], .scale = &s[1]});
    const Tensor rows = ctx.linear("linear", y, {.out = c_.patch_size() * c_.out_channels});
    if (!c_.logvar) return {{rows}, {}};
    const Tensor ones = at::ones({rows.size(0), 1}, in.stream[0].options());
    return {{at::cat({rows, ctx.residual("logvar", at::zeros_like(ones), ones, &in.cond[kLogvar])}, 1)}, {}};
  }
};

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Stem>(config));
  for (int64_t i = 0; i < config.num_layers; ++i) units.push_back(std::make_unique<Block>(config, i));
  units.push_back(std::make_unique<Head>(config));
  net::Flow inputs{{net::sizes_of(1, config.in_channels * config.patch_size()), net::sizes_of(1, config.caption_dim),
                    net::sizes_of(1, kFrequencies)},
                   {}};
  if (config.has_guidance()) inputs.stream.push_back(net::sizes_of(1, kFrequencies));
  inputs.stream.push_back(net::sizes_of(1, config.dim()));
  net::Tokens tokens;
  tokens.spaces.resize(kText);
  net::declare(units, std::move(inputs), tokens);
  return units;
}

}  // namespace tessera::models::sana
