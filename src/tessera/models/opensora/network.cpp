#include "tessera/models/opensora/spec.h"

namespace tessera::models::opensora {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;
using net::Norm;

namespace {

struct Stream {
  std::string name;
  int space;
};
const Stream kStreams[] = {{"img", kVideo}, {"txt", kText}};

/// [2 B, n, d] -> n of [2 B, d], of a video and a text row a sample. Norms and gates take them in the dtype of vec.
std::vector<Tensor> rows_of(const Tensor& video, const Tensor& text, const Tensor& vec) {
  const int64_t d = vec.size(1);
  return at::stack({video, text}, 1).to(vec.scalar_type()).view({2 * vec.size(0), -1, d}).unbind(1);
}

Norm modulated(const Tensor& shift, const Tensor& scale) { return {.eps = 1e-6, .shift = &shift, .scale = &scale}; }

class MmditUnit : public FamilyUnit<Config> {
 public:
  using FamilyUnit<Config>::FamilyUnit;

 protected:
  /// Each head of q or k, normed.
  Norm by_head() const { return {.kind = Norm::rms, .eps = 1e-6, .heads = c_.num_heads}; }
  /// Attention of all tokens of a sample to each other, with their positions.
  Tensor joint_attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v) const {
    const Tensor sent_v = ctx.ahead("attn", v);
    const auto turned = [&](const char* site, const Tensor& x) {
      return ctx.ahead("attn", ctx.rope(site, x, c_.num_heads, net::RopeStyle::half_split));
    };
    const Tensor turned_q = turned("attn.rope_q", q), turned_k = turned("attn.rope_k", k);
    return ctx.attention("attn", turned_q, turned_k, sent_v, c_.num_heads);
  }
};

class Stem final : public MmditUnit {
 public:
  explicit Stem(const Config& config) : MmditUnit(config, "stem", "") {}

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

class DoubleBlock final : public MmditUnit {
 public:
  DoubleBlock(const Config& config, int64_t index) : MmditUnit(config, "double_blocks", "double_block", index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    Tensor x = in.stream[0];  // x [T, d]
    const Tensor& vec = in.cond[0];
    const net::Linear modulations{.act = Act::silu, .out = 6 * c_.hidden_size};
    const auto m =
        rows_of(ctx.linear("img_mod.lin", vec, modulations), ctx.linear("txt_mod.lin", vec, modulations), vec);
    // m[6] of [2 B, d]: shift, scale, gate, of the attention and of the feed-forward
    x = ctx.residual("gate1", x, attention(ctx, ctx.norm("norm1", x, modulated(m[0], m[1]))), &m[2]);
    x = ctx.residual("gate2", x, feed_forward(ctx, ctx.norm("norm2", x, modulated(m[3], m[4]))), &m[5]);
    return {{x}, {}};
  }
  std::string_view output_site() const override { return "gate2"; }
  std::vector<std::string_view> order() const override {
    return {"img_mod", "txt_mod",    "img_attn.q", "img_attn.k", "img_attn.v", "img_attn.",
            "img_mlp", "txt_attn.q", "txt_attn.k", "txt_attn.v", "txt_attn."};
  }

 private:
  /// What `make` makes of each stream's rows, as tokens.
  template <class Make>
  static Tensor of_both(Context& ctx, const std::vector<Tensor>& streams, const Make& make) {
    std::vector<std::pair<int, Tensor>> made;
    for (size_t i = 0; i < streams.size(); ++i) made.emplace_back(kStreams[i].space, make(kStreams[i], streams[i]));
    return ctx.join(made);
  }
  static std::vector<Tensor> parts(Context& ctx, const Tensor& x) {
    return {ctx.part(x, kStreams[0].space), ctx.part(x, kStreams[1].space)};
  }

  Tensor attention(Context& ctx, const Tensor& y) const {
    const std::vector<Tensor> streams = parts(ctx, y);
    // stream by stream, so that what tp ranks gather of its rows serves q, k and v
    std::vector<std::pair<int, Tensor>> q, k, v;
    for (size_t i = 0; i < streams.size(); ++i) {
      const auto& [name, space] = kStreams[i];
      const std::string site = name + "_attn.";
      const auto projected = [&](const char* what) {
        return ctx.linear(site + what, streams[i], {.space = space, .split = kColumns});
      };
      q.emplace_back(space, ctx.norm(site + "norm.query_norm", projected("q_proj"), by_head(), space));
      k.emplace_back(space, ctx.norm(site + "norm.key_norm", projected("k_proj"), by_head(), space));
      v.emplace_back(space, projected("v_proj"));
    }
    const Tensor out = joint_attention(ctx, ctx.join(q), ctx.join(k), ctx.join(v));
    return of_both(ctx, parts(ctx, out), [&](const Stream& stream, const Tensor& rows) {
      return ctx.linear(stream.name + "_attn.proj", rows, {.space = stream.space, .split = kRows});
    });
  }

  Tensor feed_forward(Context& ctx, const Tensor& y) const {
    return of_both(ctx, parts(ctx, y), [&](const Stream& stream, const Tensor& rows) {
      const Tensor wide =
          ctx.linear(stream.name + "_mlp.0", rows, {.space = stream.space, .out = c_.mlp_dim(), .split = kColumns});
      return ctx.linear(stream.name + "_mlp.2", wide,
                        {.act = Act::gelu_tanh, .space = stream.space, .out = c_.hidden_size, .split = kRows});
    });
  }
};

class SingleBlock final : public MmditUnit {
 public:
  SingleBlock(const Config& config, int64_t index) : MmditUnit(config, "single_blocks", "single_block", index) {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const Tensor &x = in.stream[0], &vec = in.cond[0];
    const Tensor modulation = ctx.linear("modulation.lin", vec, {.act = Act::silu, .out = 3 * c_.hidden_size});
    const auto m = rows_of(modulation, modulation, vec);  // m[3] of [2 B, d]: shift, scale, gate
    const Tensor y = ctx.norm("norm", x, modulated(m[0], m[1]));
    const net::Linear by_heads{.split = kColumns};
    const Tensor q = ctx.norm("norm.query_norm", ctx.linear("q_proj", y, by_heads), by_head());
    const Tensor k = ctx.norm("norm.key_norm", ctx.linear("k_proj", y, by_heads), by_head());
    const Tensor v = ctx.linear("v_proj", y, by_heads);
    const Tensor wide = ctx.linear("mlp", y, {.out = c_.mlp_dim(), .split = kColumns});
    // one linear of [attention; feed-forward], as the sum of those of its two parts
    const Tensor attended = ctx.linear("linear2.attn", joint_attention(ctx, q, k, v), {.split = kRows, .bias = false});
    const Tensor fed = ctx.linear("linear2.mlp", wide, {.act = Act::gelu_tanh, .out = c_.hidden_size, .split = kRows});
    return {{ctx.residual("gate", x, ctx.residual("sum", attended, fed), &m[2])}, {}};
  }
  std::string_view output_site() const override { return "gate"; }
  std::vector<std::string_view> order() const override {
    return {"modulation", "q_proj", "k_proj", "v_proj", "norm.", "linear2.attn"};
  }
};

class Head final : public MmditUnit {
 public:
  explicit Head(const Config& config) : MmditUnit(config, "head", "final_layer.") {}

  Flow forward(Context& ctx, const Flow& in) const override {
    const auto both = [&](const char* site) {
      const Tensor row = ctx.linear(site, in.cond[0], {.act = Act::silu});
      return rows_of(row, row, in.cond[0])[0];  // [2 B, d]
    };
    const Tensor shift = both("shift"), scale = both("scale");
    const Tensor y = ctx.norm("norm", in.stream[0], modulated(shift, scale));
    return {{ctx.linear("linear", y, {.out = c_.in_channels})}, {}};
  }
};

}  // namespace

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config) {
  std::vector<std::unique_ptr<net::Unit>> units;
  units.push_back(std::make_unique<Stem>(config));
  for (int64_t i = 0; i < config.depth; ++i) units.push_back(std::make_unique<DoubleBlock>(config, i));
  for (int64_t i = 0; i < config.depth_single; ++i) units.push_back(std::make_unique<SingleBlock>(config, i));
  units.push_back(std::make_unique<Head>(config));
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
