// Softmax attention: the flash kernels for 16-bit operands on GPUs, else products and a softmax of some queries at a
// time, in fp32.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/ops/aten/aten.h"
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/target.h"

namespace tessera::ops::aten {

namespace {

constexpr int64_t kQueries = 512;  // rows of scores that exist at once

/// Rows [first, first + rows) of x [T, heads * d] as [heads, rows, d], a view.
Tensor heads_of(const Tensor& x, int64_t heads, int64_t first, int64_t rows) {
  return x.narrow(0, first, rows).view({rows, heads, -1}).transpose(0, 1);
}

/// Calls body(first query, queries, first key, keys) of each sample. Where tensors have no values (meta), only memory counts, and
/// a sample as large as another takes no more.
template <class Body>
void each_sample(const Tensor& of, const Offsets& q_at, const Offsets& k_at, const Body& body) {
  std::set<std::pair<int64_t, int64_t>> known;
  for (size_t s = 0; s + 1 < q_at.size(); ++s) {
    const int64_t queries = q_at[s + 1] - q_at[s], keys = k_at[s + 1] - k_at[s];
    if (!of.is_meta() || known.emplace(queries, keys).second) body(q_at[s], queries, k_at[s], keys);
  }
}

/// Calls body(first, rows) for each part of so many rows whose scores exist at once. Without values the first, which is the
/// largest, stands for all.
template <class Body>
void each_part(const Tensor& of, int64_t queries, const Body& body) {
  for (int64_t at = 0; at < (of.is_meta() ? std::min(queries, kQueries) : queries); at += kQueries)
    body(at, std::min(kQueries, queries - at));
}

/// On a GPU, and where tensors without values stand for those of one. The kernel takes heads of 8, 16, ... 256 values.
bool runs_flash(const Tensor& q, int64_t heads) {
  const int64_t d = q.size(1) / heads;
  return (q.is_cuda() || (!q.is_cpu() && meta_target())) && is_half(q) && d % 8 == 0 && d <= 256;
}

/// What LibTorch 2.11's kernel allocates (flash_api.cpp, mha_fwd and mha_bwd), without its work.
namespace on_meta {

using Forward = std::tuple<Tensor, Tensor>;           // out, log-sum-exp
using Backward = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

/// Keys are divided among thread blocks, whose results are added up, where heads and queries are too few to fill the chip:
/// into as few parts as fill it 0.85 times as well as the best number does.
int64_t key_parts(int64_t heads, int64_t queries, int64_t keys, int64_t head_dim) {
  const int64_t slots = 2 * meta_target()->multiprocessors, blocks = heads * div_up(queries, 64),
                key_blocks = div_up(keys, head_dim <= 64    ? 256
                                          : head_dim <= 128 ? 128
                                                            : 64);
  if (10 * blocks >= 8 * slots) return 1;
  const auto filled = [&](int64_t parts) {
    const auto waves = static_cast<double>(blocks * parts) / static_cast<double>(slots);
    return waves / std::ceil(waves);
  };
  const auto differs = [&](int64_t parts) {  // from one part less
    return parts == 1 || div_up(key_blocks, parts) != div_up(key_blocks, parts - 1);
  };
  const int64_t most = std::min({int64_t{128}, slots, key_blocks});
  double best = 0;
  for (int64_t parts = 1; parts <= most; ++parts)
    if (differs(parts)) best = std::max(best, filled(parts));
  int64_t chosen = 1;
  while (chosen < most && (!differs(chosen) || filled(chosen) < 0.85 * best)) ++chosen;
  return chosen;
}

/// Of a head's dimensions in the kernel's fp32 sums.
int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, head_dim <= 128 ? 32 : 64); }

struct RandomState {  // of a dropout that is off: two numbers and one that is not used
  explicit RandomState(const Tensor& like)
      : state(at::empty({2}, like.options().dtype(at::kLong))), unused(at::empty({}, state.options())) {}
  Tensor state, unused;
};

/// q, k [1, heads, rows, d].
Forward forward(const Tensor& q, const Tensor& k) {
  const int64_t heads = q.size(1), queries = q.size(2), d = q.size(3);
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const Tensor out = at::empty_like(q), lse = at::empty({1, heads, queries}, floats);
  Tensor part_lse, part_out;
  if (const int64_t parts = key_parts(heads, queries, k.size(2), d); parts > 1) {
    part_lse = at::empty({parts, 1, heads, queries}, floats);
    part_out = at::empty({parts, 1, heads, queries, padded_dim(d)}, floats);
  }
  const RandomState random(q);
  return {out, lse};
}

Backward backward(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t heads = q.size(1), queries = round_up(q.size(2), 128), d = q.size(3);
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  Backward grads = {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const Tensor delta = at::empty({1, heads, queries}, floats);
  const int64_t copies =
      at::globalContext().deterministicAlgorithms()  // each multiprocessor's sums apart, added in order
          ? div_up(meta_target()->multiprocessors, heads)
          : 1;
  const Tensor dq_sums = at::empty({copies, 1, queries, heads, padded_dim(d)}, floats);
  return grads;
}

}  // namespace on_meta

/// The flash kernels' form of rows: [1, heads, rows, d].
Tensor batch_of(const Tensor& x, int64_t heads, int64_t first, int64_t rows) {
  return heads_of(x, heads, first, rows).unsqueeze(0);
}

void flash_forward(const AttentionInputs& in, int64_t heads, double scale, const Offsets& q_at, const Offsets& k_at,
                   const AttentionResult& result) {
  each_sample(in.q, q_at, k_at, [&](int64_t q, int64_t queries, int64_t k, int64_t keys) {
    if (queries == 0) return;
    const Tensor query = batch_of(in.q, heads, q, queries), key = batch_of(in.k, heads, k, keys);
    const auto take = [&](const auto& got) {
      heads_of(result.out, heads, q, queries).copy_(std::get<0>(got).squeeze(0));
      result.lse.narrow(1, q, queries).copy_(std::get<1>(got).squeeze(0).narrow(1, 0, queries));
    };
    if (!query.is_cuda()) return take(on_meta::forward(query, key));
    take(at::_scaled_dot_product_flash_attention(query, key, batch_of(in.v, heads, k, keys), /*dropout_p=*/0.0,
                                                 /*is_causal=*/false, /*return_debug_mask=*/false, scale));
  });
}

}  // namespace

Tensor output_along(const Tensor& d_out, const Tensor& delta, int64_t heads) {
  const Tensor up = d_out.view({d_out.size(0), heads, -1});
  Tensor factor = at::linalg_vector_norm(up, 2, at::IntArrayRef{2}, /*keepdim=*/true, at::kFloat).square_();
  factor = at::div(delta.t().unsqueeze(2), factor).masked_fill_(factor == 0, 0);
  Tensor along = at::empty_like(up);
  at::mul_out(along, up, factor);
  return along.view(d_out.sizes());
}

namespace {

void flash_backward(const AttentionInputs& in, const Tensor& out, const Tensor& d_out, const Tensor& lse, int64_t heads,
                    const Offsets& q_at, const Offsets& k_at, const AttentionInputs& grads) {
  const Tensor none = at::zeros({2}, in.q.options().dtype(at::kLong));  // the state of a dropout that is off
  each_sample(in.q, q_at, k_at, [&](int64_t q, int64_t queries, int64_t k, int64_t keys) {
    if (queries == 0) {
      for (const Tensor& grad : {grads.k, grads.v}) grad.narrow(0, k, keys).zero_();
      return;
    }
    const Tensor query = batch_of(in.q, heads, q, queries), key = batch_of(in.k, heads, k, keys),
                 value = batch_of(in.v, heads, k, keys),
                 sums = lse.narrow(1, q, queries).unsqueeze(0).contiguous();  // a copy where there are several samples
    const auto take = [&](const auto& got) {
      heads_of(grads.q, heads, q, queries).copy_(std::get<0>(got).squeeze(0));
      heads_of(grads.k, heads, k, keys).copy_(std::get<1>(got).squeeze(0));
      heads_of(grads.v, heads, k, keys).copy_(std::get<2>(got).squeeze(0));
    };
    if (!query.is_cuda()) return take(on_meta::backward(query, key, value));
    take(at::_scaled_dot_product_flash_attention_backward(
        batch_of(d_out, heads, q, queries), query, key, value, batch_of(out, heads, q, queries), sums,
        /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, queries, keys, /*dropout_p=*/0.0, /*is_causal=*/false, none, none,
        1 / std::sqrt(static_cast<double>(in.q.size(1) / heads))));
  });
}

}  // namespace

void attention(const AttentionInputs& in, const Tensor& bias, int64_t heads, double scale, const Offsets& q_at,
               const Offsets& k_at, const AttentionResult& result) {
  if (runs_flash(in.q, heads) && !bias.defined()) return flash_forward(in, heads, scale, q_at, k_at, result);
  each_sample(in.q, q_at, k_at, [&](int64_t q, int64_t queries, int64_t k, int64_t keys) {
    const Tensor key = as_floats(heads_of(in.k, heads, k, keys)), value = as_floats(heads_of(in.v, heads, k, keys));
    each_part(in.q, queries, [&](int64_t at, int64_t rows) {
      const int64_t first = q + at;
      const Tensor scores = as_floats(heads_of(in.q, heads, first, rows)).bmm(key.transpose(1, 2));
      if (bias.defined()) scores.add_(bias.narrow(1, at, rows));
      scores.mul_(scale);
      const Tensor top = scores.amax({2}, /*keepdim=*/true);
      scores.sub_(top).exp_();
      const Tensor sums = scores.sum(2, /*keepdim=*/true);
      heads_of(result.out, heads, first, rows).copy_(scores.bmm(value).div_(sums));
      result.lse.narrow(1, first, rows).copy_((top + sums.log()).squeeze(2));
    });
  });
}

void attention_backward(const AttentionInputs& in, const Tensor& out, const Tensor& d_out, const Tensor& lse,
                        const Tensor& delta, int64_t heads, const Offsets& q_at, const Offsets& k_at,
                        const AttentionInputs& grads) {
  if (runs_flash(in.q, heads))
    return flash_backward(in, out.defined() ? out : output_along(d_out, delta, heads), d_out, lse, heads, q_at, k_at,
                          grads);  // [Note: delta for flash]
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(1) / heads));
  each_sample(in.q, q_at, k_at, [&](int64_t q, int64_t queries, int64_t k, int64_t keys) {
    const Tensor key = as_floats(heads_of(in.k, heads, k, keys)), value = as_floats(heads_of(in.v, heads, k, keys));
    const Tensor d_key = at::zeros(key.sizes(), key.options()), d_value = at::zeros(key.sizes(), key.options());
    each_part(in.q, queries, [&](int64_t at, int64_t rows) {
      const int64_t first = q + at;
      const Tensor query = as_floats(heads_of(in.q, heads, first, rows)),
                   up = as_floats(heads_of(d_out, heads, first, rows));
      const Tensor dot =
          delta.defined() ? delta.narrow(1, first, rows) : (as_floats(heads_of(out, heads, first, rows)) * up).sum(2);
      const Tensor p = query.bmm(key.transpose(1, 2)).mul_(scale).sub_(lse.narrow(1, first, rows).unsqueeze(2)).exp_();
      d_value.baddbmm_(p.transpose(1, 2), up);
      const Tensor d_scores = up.bmm(value.transpose(1, 2)).sub_(dot.unsqueeze(2)).mul_(p).mul_(scale);
      heads_of(grads.q, heads, first, rows).copy_(d_scores.bmm(key));
      d_key.baddbmm_(d_scores.transpose(1, 2), query);
    });
    heads_of(grads.k, heads, k, keys).copy_(d_key);
    heads_of(grads.v, heads, k, keys).copy_(d_value);
  });
}

Tensor attention_delta(const Tensor& out, const Tensor& d_out, int64_t heads) {
  const int64_t rows = out.size(0);
  return (as_floats(out) * as_floats(d_out)).view({rows, heads, -1}).sum(2).t().contiguous();
}

void merge_attention(const AttentionResult& sum, const AttentionResult& part, int64_t heads) {
  const int64_t rows = sum.out.size(0);
  const Tensor top = at::maximum(sum.lse, part.lse), a = (sum.lse - top).exp_(), b = (part.lse - top).exp_(),
               both = a + b;
  const auto by_head = [&](const Tensor& x) { return x.view({rows, heads, -1}); };
  const auto weight = [](const Tensor& x) { return x.t().unsqueeze(2); };  // [heads, rows] -> [rows, heads, 1]
  by_head(sum.out).mul_(weight(a)).add_(by_head(part.out) * weight(b)).div_(weight(both));
  sum.lse.copy_(top + both.log());
}

}  // namespace tessera::ops::aten
