#include "tessera/net/plain_context.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/ops.h"
#include "tessera/ops/reference.h"

namespace tessera::net {

namespace {

/// [T, heads * d] -> [heads, T, d]
Tensor split_heads(const Tensor& x, int64_t heads) { return x.reshape({x.size(0), heads, -1}).transpose(0, 1); }
/// [heads, T, d] -> [T, heads * d]
Tensor join_heads(const Tensor& x) { return x.transpose(0, 1).reshape({x.size(1), -1}); }

/// Attention of one sample: q [heads, Lq, d], k and v [heads, Lk, d].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
  return at::matmul(at::softmax(scores, -1), v);
}

/// Attention of queries [q_at[i], q_at[i + 1]) to keys [k_at[i], k_at[i + 1]).
Tensor attend_packed(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const std::vector<int64_t>& q_at,
                     const std::vector<int64_t>& k_at) {
  std::vector<Tensor> samples;
  for (size_t s = 0; s + 1 < q_at.size(); ++s) {
    const auto queries = [&](const Tensor& x) { return split_heads(x.slice(0, q_at[s], q_at[s + 1]), heads); };
    const auto keys = [&](const Tensor& x) { return split_heads(x.slice(0, k_at[s], k_at[s + 1]), heads); };
    samples.push_back(join_heads(attend(queries(q), keys(k), keys(v))));
  }
  return at::cat(samples);
}

/// [T, heads * d] -> the two channels of each pair, [T, heads, d / 2] each.
std::pair<Tensor, Tensor> channel_pairs(const Tensor& x, int64_t heads, RopeStyle style) {
  if (style == RopeStyle::interleaved) {
    const Tensor pairs = x.reshape({x.size(0), heads, -1, 2});
    return {pairs.select(-1, 0), pairs.select(-1, 1)};
  }
  const auto halves = x.reshape({x.size(0), heads, -1}).chunk(2, -1);
  return {halves[0], halves[1]};
}

Tensor turned(const Tensor& x, int64_t heads, RopeStyle style, const Space& space) {
  const auto [re, im] = channel_pairs(x, heads, style);
  const Tensor cos = space.cos.unsqueeze(1), sin = space.sin.unsqueeze(1);  // [T, 1, d/2]
  const std::vector<Tensor> both = {re * cos - im * sin, re * sin + im * cos};
  return (style == RopeStyle::interleaved ? at::stack(both, -1) : at::cat(both, -1)).reshape(x.sizes());
}

Tensor plain_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
}

}  // namespace

Tensor PlainContext::optional(std::string_view site, std::string_view suffix) const {
  const auto found = weights_.find(prefix_ + std::string(site).append(suffix));
  return found == weights_.end() ? Tensor() : found->second;
}

Tensor PlainContext::weight(std::string_view site, std::string_view suffix) const {
  const Tensor value = optional(site, suffix);
  if (value.defined()) return value;
  const std::string name = prefix_ + std::string(site).append(suffix);
  std::vector<std::string> known;
  for (const auto& [other, tensor] : weights_) known.push_back(other);
  const auto near = nearest(name, known);
  throw UserError(Exit::input, "net.weight", name + ": no such weight",
                  near.empty() ? "" : "the nearest is " + near[0]);
}

Tensor PlainContext::linear(std::string_view site, const Tensor& input, const Linear& how) {
  const Tensor x = activated(input, how);
  const Tensor w = weight(site, ".weight").flatten(1), bias = optional(site, ".bias");  // a patch convolution is a GEMM
  const Tensor a = adapters_ ? optional(site, kLoraA) : Tensor();
  const auto has = [&](const std::string& ending) { return optional(site, ending).defined(); };
  const ChangeKind* kind = adapters_ ? change_kind(has) : nullptr;
  if (!a.defined() && !kind) return at::linear(x, w, bias);
  const ops::Dropout drop = dropout_at(*adapters_, site, tokens_, tokens_.space(how.space), x.size(0), false),
                     left_out = left_out_at(*adapters_, site, tokens_, tokens_.space(how.space), x.size(0), false);
  Tensor mask, ranks;
  if (drop.active()) ops::drop_rows(mask = at::ones_like(x), drop, 0);
  if (left_out.active())
    ops::drop_rows(ranks = at::ones({x.size(0), a.defined() ? a.size(0) : 1}, x.options()), left_out, 0);
  if (kind) {
    const auto matrix = [&](const std::string& name) {
      return has(name) ? weight(site, name) : at::matmul(weight(site, name + kLeft), weight(site, name + kRight));
    };
    const Tensor change = ops::reference::weight_change(matrix(kind->first), matrix(kind->second),
                                                        kind->kind == ops::Adapter::Kind::kronecker);
    if (const Tensor m = optional(site, kLoraMagnitude); m.defined()) {
      const Tensor adapted = w + adapters_->scale_of(site) * change;
      const Tensor y = at::linear(x, adapted) * (m / adapted.detach().norm(2, 1));
      return bias.defined() ? y + bias : y;
    }
    const Tensor added = adapters_->scale_of(site) * at::linear(mask.defined() ? mask * x : x, change);
    return at::linear(x, w, bias) + (ranks.defined() ? ranks * added : added);
  }
  return ops::reference::lora_linear(x, w, bias, a, weight(site, kLoraB), adapters_->scale_of(site), mask,
                                     optional(site, kLoraMagnitude), /*gelu=*/false, ranks);
}

Tensor PlainContext::norm(std::string_view site, const Tensor& x, const Norm& how, int space) {
  if (how.kind == Norm::rms) {
    const Tensor w = weight(site, ".weight");
    const Tensor y =
        how.heads > 0 ? plain_rms_norm(x.view({x.size(0), how.heads, -1}), w, how.eps) : plain_rms_norm(x, w, how.eps);
    return how.rope > 0 ? turned(y.reshape(x.sizes()), how.rope, RopeStyle::interleaved, tokens_.space(space))
                        : y.reshape(x.sizes());
  }
  if (!how.scale) return at::layer_norm(x, {x.size(-1)}, weight(site, ".weight"), weight(site, ".bias"), how.eps);
  const Tensor normal = at::layer_norm(x, {x.size(-1)}, {}, {}, how.eps), &rows = tokens_.space(space).rows.of_token;
  return normal * (1 + how.scale->index_select(0, rows)) + how.shift->index_select(0, rows);
}

Tensor PlainContext::rope(std::string_view, const Tensor& x, int64_t heads, RopeStyle style, int space) {
  return turned(x, heads, style, tokens_.space(space));
}

Tensor PlainContext::residual(std::string_view, const Tensor& x, const Tensor& y, const Tensor* gate, int space, bool) {
  return gate ? x + y * gate->index_select(0, tokens_.space(space).rows.of_token) : x + y;
}

Tensor PlainContext::attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                               const Segments& segments, const Softmax& softmax) {
  if (softmax.bias) {
    const Tensor scores = at::matmul(split_heads(q, heads), split_heads(k, heads).transpose(1, 2)) + *softmax.bias;
    return join_heads(at::matmul(at::softmax(scores, -1), split_heads(v, heads)));
  }
  const SegmentOffsets offsets = segment_offsets(tokens_, segments);
  if (!segments.order.defined()) return attend_packed(q, k, v, heads, offsets.q_offsets, offsets.k_offsets);
  const auto ordered = [&](const Tensor& x) { return x.index_select(0, segments.order); };
  const Tensor out = attend_packed(ordered(q), ordered(k), ordered(v), heads, offsets.q_offsets, offsets.k_offsets);
  return out.index_select(0, at::argsort(segments.order));
}

Tensor PlainContext::linear_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                      int64_t heads, double eps, const Rotated& rotated) {
  const Tensor queries = at::relu(q), keys = at::relu(k);
  const std::vector<int64_t> at = tokens_.state_offsets();
  const auto of = [&](const Tensor& x, size_t s) { return split_heads(x.slice(0, at[s], at[s + 1]), heads); };
  std::vector<Tensor> states, results;  // [heads, d + 1, d]: the products, and behind them the sums of keys
  for (size_t s = 0; s + 1 < at.size(); ++s)
    states.push_back(at::cat({at::matmul(of(rotated.k ? *rotated.k : keys, s).transpose(1, 2), of(v, s)),
                              of(keys, s).sum(1, /*keepdim=*/true)},
                             1));
  Tensor read = tokens_.read_states(at::stack(states));
  if (tokens_.history) read = tokens_.history->read(prefix_ + std::string(site), read, std::ssize(tokens_.offsets) - 1);
  for (size_t s = 0; s + 1 < at.size(); ++s) {
    const int64_t d = read.size(3);
    const Tensor up = at::matmul(of(rotated.q ? *rotated.q : queries, s), read[s].narrow(1, 0, d));  // [heads, n, d]
    const Tensor down = at::matmul(of(queries, s), read[s].narrow(1, d, 1).transpose(1, 2)) + eps;   // [heads, n, 1]
    results.push_back(join_heads(up / down));
  }
  return at::cat(results);
}

Tensor PlainContext::conv(std::string_view site, const Tensor& input, const Conv& how, int index) {
  const Tensor x = how.silu ? at::silu(input) : input;
  const Space& space = tokens_.space(index);
  const auto& kernel = how.kernel;
  const Tensor w = weight(site, ".weight").reshape({x.size(1), 1, kernel[0], kernel[1], kernel[2]});
  std::vector<Tensor> samples;
  for (size_t s = 0; s + 1 < space.offsets.size(); ++s) {
    const auto [f, h, width] = space.shapes.at(s);
    const Tensor grid = x.slice(0, space.offsets[s], space.offsets[s + 1]).t().reshape({1, x.size(1), f, h, width});
    const Tensor out =
        at::conv3d(grid, w, optional(site, ".bias"), at::IntArrayRef{1, 1, 1},
                   at::IntArrayRef{kernel[0] / 2, kernel[1] / 2, kernel[2] / 2}, at::IntArrayRef{1, 1, 1}, x.size(1));
    samples.push_back(out.reshape({x.size(1), -1}).t());
  }
  const Tensor all = at::cat(samples);
  return how.value ? *how.value * at::silu(all) : all;
}

Tensor PlainContext::unfold(std::string_view site, const Tensor& x, const Conv& how, int index) {
  const Space& space = tokens_.space(index);
  const auto& k = how.kernel;
  const std::string place = prefix_ + std::string(site);
  const bool in_time = tokens_.history && k[0] > 1;
  const Tensor before =  // of the frame before a chunk, k[0] = 3
      in_time ? tokens_.before_first_frames(place, x, x.size(0)) : Tensor();
  if (in_time && tokens_.history->storing) tokens_.history->store_frames(place, tokens_.last_frames(x).detach());
  std::vector<Tensor> rows;
  for (size_t s = 0; s + 1 < space.offsets.size(); ++s) {
    const int64_t h = space.shapes.at(s)[1], w = space.shapes[s][2], f = space.shapes[s][0];
    const Tensor grid = x.slice(0, space.offsets[s], space.offsets[s + 1]).view({f, h, w, -1});
    for (int64_t first = 0, end = 0; first < f; first = end) {  // chunk by chunk: zeros behind each
      end = space.chunk_of(s, first)[1];
      const int64_t left = std::min(first - tokens_.first_neighbour(s, first), k[0] / 2);
      Tensor chunk = at::constant_pad_nd(grid.slice(0, first - left, end),
                                         {0, 0, k[2] / 2, k[2] / 2, k[1] / 2, k[1] / 2, k[0] / 2 - left, k[0] / 2});
      if (left == 0 && before.defined()) {
        const int64_t row = space.offsets[s] + first * h * w;
        chunk = at::cat({before.slice(0, row, row + h * w).view({1, h, w, -1}), chunk.slice(0, 1)});
      }
      rows.push_back(
          chunk.unfold(0, k[0], 1).unfold(1, k[1], 1).unfold(2, k[2], 1).reshape({(end - first) * h * w, -1}));
    }
  }
  return at::cat(rows);
}

Tensor PlainContext::param(std::string_view site) { return weight(site, ""); }

Tensor PlainContext::embedding(std::string_view site, const Tensor& ids) {
  return at::embedding(weight(site, ".weight"), ids);
}

Tensor run_plain(const std::vector<std::unique_ptr<Unit>>& units, const WeightMap& weights, const Batch& batch) {
  Flow flow{batch.inputs, {}};
  for (const auto& unit : units) {
    PlainContext ctx(weights, unit->prefix(), batch.tokens);
    Flow out = unit->forward(ctx, flow);
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  return flow.stream.at(0);
}

}  // namespace tessera::net
