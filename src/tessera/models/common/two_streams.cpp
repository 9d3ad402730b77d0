#include "tessera/models/common/two_streams.h"

namespace tessera::models {

using at::Tensor;
using net::Act;
using net::Context;
using net::Flow;
using net::Norm;

namespace {

using Parts = std::vector<std::pair<int, Tensor>>;  // of the tokens, by space

/// What `make` makes of each stream's rows, as tokens.
template <class Make>
Tensor of_both(Context& ctx, const TwoStreams& c, const Tensor& tokens, const Make& make) {
  const Stream* both[] = {&c.video, &c.text};
  const Tensor rows[] = {ctx.part(tokens, both[0]->space), ctx.part(tokens, both[1]->space)};
  Parts made;
  for (size_t i = 0; i < 2; ++i) made.emplace_back(both[i]->space, make(*both[i], rows[i]));
  return ctx.join(made);
}

}  // namespace

std::vector<Tensor> modulation_rows(const Tensor& video, const Tensor& text, const Tensor& vec) {
  const int64_t d = vec.size(1);
  return at::stack({video, text}, 1).to(vec.scalar_type()).view({2 * vec.size(0), -1, d}).unbind(1);
}

Norm modulated(const Tensor& shift, const Tensor& scale) { return {.eps = 1e-6, .shift = &shift, .scale = &scale}; }

Norm by_head(int64_t heads) { return {.kind = Norm::rms, .eps = 1e-6, .heads = heads}; }

Tensor joint_attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                       net::RopeStyle rope) {
  const Tensor sent_v = ctx.ahead("attn", v);
  const auto turned = [&](const char* site, const Tensor& x) {
    return ctx.ahead("attn", ctx.rope(site, x, heads, rope));
  };
  const Tensor turned_q = turned("attn.rope_q", q), turned_k = turned("attn.rope_k", k);
  return ctx.attention("attn", turned_q, turned_k, sent_v, heads);
}

Flow TwoStreamBlock::forward(Context& ctx, const Flow& in) const {
  Tensor x = in.stream[0];  // x [T, d]
  const Tensor& vec = in.cond[0];
  const net::Linear modulations{.act = Act::silu, .out = 6 * c_.width};
  const auto m = modulation_rows(ctx.linear(c_.video.modulation, vec, modulations),
                                 ctx.linear(c_.text.modulation, vec, modulations), vec);
  // m[6] of [2 B, d]: shift, scale, gate, of the attention and of the feed-forward
  x = ctx.residual("gate1", x, attention(ctx, ctx.norm("norm1", x, modulated(m[0], m[1]))), &m[2]);
  x = ctx.residual("gate2", x, feed_forward(ctx, ctx.norm("norm2", x, modulated(m[3], m[4]))), &m[5]);
  return {{x}, {}};
}

Tensor TwoStreamBlock::attention(Context& ctx, const Tensor& y) const {
  // stream by stream, so that what tp ranks gather of its rows serves q, k and v
  Parts q, k, v;
  const Stream* both[] = {&c_.video, &c_.text};
  const Tensor rows[] = {ctx.part(y, both[0]->space), ctx.part(y, both[1]->space)};
  for (size_t i = 0; i < 2; ++i) {
    const Stream& stream = *both[i];
    const net::Linear by_heads{.space = stream.space, .split = kColumns};
    const auto normed = [&](const std::string& site, const std::string& norm) {
      return ctx.norm(norm, ctx.linear(site, rows[i], by_heads), by_head(c_.heads), stream.space);
    };
    q.emplace_back(stream.space, normed(stream.q, stream.q_norm));
    k.emplace_back(stream.space, normed(stream.k, stream.k_norm));
    v.emplace_back(stream.space, ctx.linear(stream.v, rows[i], by_heads));
  }
  const Tensor out = joint_attention(ctx, ctx.join(q), ctx.join(k), ctx.join(v), c_.heads, c_.rope);
  return of_both(ctx, c_, out, [&](const Stream& stream, const Tensor& rows) {
    return ctx.linear(stream.out, rows, {.space = stream.space, .out = c_.width, .split = kRows});
  });
}

Tensor TwoStreamBlock::feed_forward(Context& ctx, const Tensor& y) const {
  return of_both(ctx, c_, y, [&](const Stream& stream, const Tensor& rows) {
    const Tensor wide = ctx.linear(stream.up, rows, {.space = stream.space, .out = c_.mlp_dim, .split = kColumns});
    return ctx.linear(stream.down, wide,
                      {.act = Act::gelu_tanh, .space = stream.space, .out = c_.width, .split = kRows});
  });
}

Flow TwoStreamHead::forward(Context& ctx, const Flow& in) const {
  const auto both = [&](const char* site) {
    const Tensor row = ctx.linear(site, in.cond[0], {.act = Act::silu});
    return modulation_rows(row, row, in.cond[0])[0];  // [2 B, d]
  };
  const Tensor shift = both("shift"), scale = both("scale");
  const Tensor y = ctx.norm("norm", in.stream[0], modulated(shift, scale));
  return {{ctx.linear("linear", y, {.out = c_})}, {}};
}

}  // namespace tessera::models
