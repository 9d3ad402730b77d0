// Softmax attention: the kernels of cuDNN or flash for 16-bit operands on GPUs (plan/attention.h), else products and a softmax
// of some queries at a time, in fp32.
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <set>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/aten/parts.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/session.h"

namespace tessera::ops::aten {

namespace {

constexpr int64_t kQueries = 512;      // rows of scores that exist at once
constexpr int64_t kFlashRows = 65536;  // of one call of the flash kernels, where it has several samples
constexpr int64_t kFlashTile = 128;    // to which their backward rounds each sample's queries up, in fp32

/// Samples that lie behind each other, which one call computes.
struct Samples {
  int64_t count = 0;
  int64_t q = 0, queries = 0;  // the first row, and how many a sample has; of samples that are not alike the longest
  int64_t k = 0, keys = 0;
  int64_t all_queries = 0, all_keys = 0;  // of all of them
  bool alike = true;                      // they have equally many of both
  size_t first = 0;                       // of the packed batch
};

/// How many samples a call takes.
struct Most {
  int64_t rows;         // of queries or keys, whichever are more; a single sample may have more
  int64_t tile = 1;     // a sample's queries count as a multiple of this
  bool unlike = false;  // of different lengths too
  int64_t alone = 0;    // but none of those that have so many keys; 0: any
};

/// Calls body(samples) for each call. Where tensors have no values (meta), only memory counts, and a call as large as another
/// takes no more.
template <class Body>
void each_call(const Tensor& of, const Offsets& q_at, const Offsets& k_at, const Most& most, const Body& body) {
  std::set<std::array<int64_t, 5>> known;
  const size_t end = q_at.size() - 1;
  const auto queries_of = [&](size_t s) { return q_at[s + 1] - q_at[s]; };
  const auto keys_of = [&](size_t s) { return k_at[s + 1] - k_at[s]; };
  const auto rows_of = [&](size_t s) { return std::max(round_up(queries_of(s), most.tile), keys_of(s)); };
  for (size_t s = 0; s < end;) {
    Samples call{.q = q_at[s], .queries = queries_of(s), .k = k_at[s], .keys = keys_of(s), .first = s};
    const size_t begin = s;
    for (int64_t rows = 0; s < end; ++s) {
      const bool like = queries_of(s) == queries_of(begin) && keys_of(s) == keys_of(begin);
      const bool alone = most.alone > 0 && std::max(keys_of(s), keys_of(begin)) >= most.alone;
      const bool fits = like || (most.unlike && !alone && queries_of(s) > 0 && queries_of(begin) > 0);
      if (s > begin && (!fits || rows + rows_of(s) > most.rows)) break;
      rows += rows_of(s), call.alike = call.alike && like;
      call.queries = std::max(call.queries, queries_of(s)), call.keys = std::max(call.keys, keys_of(s));
    }
    call.count = static_cast<int64_t>(s - begin);
    call.all_queries = q_at[s] - call.q, call.all_keys = k_at[s] - call.k;
    if (!of.is_meta() || known.insert({call.count, call.queries, call.keys, call.all_queries, call.all_keys}).second)
      body(call);
  }
}

/// `count` samples of `rows` rows of x [T, heads * d] from row `first` on, as [count, heads, rows, d]: a view.
Tensor samples_of(const Tensor& x, int64_t heads, int64_t first, int64_t count, int64_t rows) {
  return x.narrow(0, first, count * rows).view({count, rows, heads, x.size(1) / heads}).transpose(1, 2);
}
/// Their columns of x [heads, T], as [count, heads, rows]: a view.
Tensor columns_of(const Tensor& x, int64_t first, int64_t count, int64_t rows) {
  return x.narrow(1, first, count * rows).unflatten(1, {count, rows}).transpose(0, 1);
}

/// Calls body(first, rows) for each part of so many rows whose scores exist at once. Without values the first, which is the
/// largest, stands for all.
template <class Body>
void each_part(const Tensor& of, int64_t queries, const Body& body) {
  for (int64_t at = 0; at < (of.is_meta() ? std::min(queries, kQueries) : queries); at += kQueries)
    body(at, std::min(kQueries, queries - at));
}

/// Whether LibTorch has the flash kernels for a device: for CUDA, and for another where a test has put some.
bool has_kernels(c10::DeviceType type) {
  static const bool others = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("aten::_flash_attention_forward", "")
                                 .hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  return type == c10::DeviceType::CUDA || (others && type == c10::DeviceType::PrivateUse1);
}
bool has_kernels(const Tensor& q) { return has_kernels(q.device().type()); }

/// Whether the tensor's device is taken to have them: tensors without values stand for those of a target, or of the process's
/// device.
bool has_flash(const Tensor& q) {
  const device::Backend* here = q.is_meta() ? device::used() : nullptr;
  return has_kernels(q) || (here && has_kernels(here->type)) || (!q.is_cpu() && session().target.has_value());
}

/// What a call of so many keys takes.
plan::AttentionTaken taken(const Tensor& q, int64_t heads, int64_t keys) {
  if (!has_flash(q)) return {plan::AttentionKernel::products, "this device has no other"};
  return plan::attention_kernel(session().attention.kernel,
                                {.half = is_half(q), .head = q.size(1) / heads, .keys = keys});
}

/// Tells whoever asks. `forward`: at the site that the thread is at.
void note(const Tensor& q, const plan::AttentionTaken& taken, bool forward) {
  plan::AttentionUse* use = session().attention.use;
  if (use && !q.is_cpu()) use->sites[taken].insert(forward ? session().site : std::string());
}
void note_shape(const Samples& call, int64_t heads, int64_t head) {
  if (plan::AttentionUse* use = session().attention.use)
    use->shapes.insert({call.count, heads, call.queries, call.keys, head});
}

bool takes_products(const Tensor& q, int64_t heads) {
  return taken(q, heads, 1).kernel == plan::AttentionKernel::products;
}

/// What LibTorch 2.11's kernels allocate (flash_api.cpp, mha_fwd and mha_bwd; cudnn/MHA.cpp), without their work.
namespace on_meta {

const Target& chip() {
  static const Target& most = target("sm_90", "ops.attention");  // of a device that is no target
  return session().target ? *session().target : most;
}

using Forward = std::tuple<Tensor, Tensor>;           // out, log-sum-exp
using Backward = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

/// Keys are divided among thread blocks, whose results are added up, where heads and queries are too few to fill the chip:
/// into as few parts as fill it 0.85 times as well as the best number does. `heads`: of all samples.
int64_t key_parts(int64_t heads, int64_t queries, int64_t keys, int64_t head_dim) {
  const int64_t slots = 2 * chip().multiprocessors, blocks = heads * div_up(queries, 64),
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

/// q, k [samples, heads, rows, d].
Forward forward(const Tensor& q, const Tensor& k) {
  const int64_t samples = q.size(0), heads = q.size(1), queries = q.size(2), d = q.size(3);
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const Tensor out = at::empty_like(q), lse = at::empty({samples, heads, queries}, floats);
  Tensor part_lse, part_out;
  if (const int64_t parts = key_parts(samples * heads, queries, k.size(2), d); parts > 1) {
    part_lse = at::empty({parts, samples, heads, queries}, floats);
    part_out = at::empty({parts, samples, heads, queries, padded_dim(d)}, floats);
  }
  const RandomState random(q);
  return {out, lse};
}

/// Copies of the sums of dq that a backward adds up: with the same bits each time those of each multiprocessor apart.
int64_t copies(int64_t heads) {
  return at::globalContext().deterministicAlgorithms() ? div_up(chip().multiprocessors, heads) : 1;
}

Backward backward(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t samples = q.size(0), heads = q.size(1), queries = round_up(q.size(2), kFlashTile), d = q.size(3);
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  Backward grads = {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const Tensor delta = at::empty({samples, heads, queries}, floats);
  const Tensor dq_sums = at::empty({copies(samples * heads), samples, queries, heads, padded_dim(d)}, floats);
  return grads;
}

/// Of samples of different lengths: q [T, heads, d].
Forward forward_of_unlike(const Tensor& q) {
  const Tensor out = at::empty_like(q), lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  const RandomState random(q);
  return {out, lse};
}
Backward backward_of_unlike(const Tensor& q, const Tensor& k, const Tensor& v, int64_t samples) {
  const int64_t rows = q.size(0) + kFlashTile * samples, heads = q.size(1);
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  Backward grads = {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const Tensor delta = at::empty({heads, rows}, floats);
  const Tensor dq_sums = at::empty({copies(samples * heads), rows, heads, padded_dim(q.size(2))}, floats);
  return grads;
}

/// By cuDNN; q [samples, heads, rows, d]. A forward needs no workspace. [E]
Forward cudnn_forward(const Tensor& q) {
  const Tensor out = at::empty_like(q),
               lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  const RandomState random(q);
  return {out, lse};
}

/// cuDNN's frontend asks for the gradients of all scores in the operands' dtype, where they take no more than 256 MiB and the
/// chip is a Hopper or newer, else for fp32 sums of dq; and for the products of output and gradient. LibTorch takes all of
/// it from the allocator as one tensor.
Backward cudnn_backward(const Tensor& q, const Tensor& k, const Tensor& v) {
  constexpr int64_t kMostScores = int64_t{256} << 20, kTile = 64;
  const int64_t samples = q.size(0) * q.size(1), queries = round_up(q.size(2), kTile);
  const int64_t scores = samples * queries * round_up(k.size(2), kTile) * q.element_size();
  const bool all_scores = scores <= kMostScores && !chip().name.starts_with("sm_8");
  const int64_t bytes = (all_scores ? scores : samples * queries * q.size(3) * 4) + samples * q.size(2) * 4;
  Backward grads = {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const Tensor workspace = at::empty({bytes}, q.options().dtype(at::kByte));
  return grads;
}

}  // namespace on_meta

/// Where samples of different lengths begin, from the first on: int32 beside them.
Tensor begins_of(const Offsets& at, const Samples& call, const Tensor& beside) {
  std::vector<int32_t> begins(static_cast<size_t>(call.count) + 1);
  for (size_t s = 0; s < begins.size(); ++s) begins[s] = static_cast<int32_t>(at[call.first + s] - at[call.first]);
  const Tensor there = at::empty({call.count + 1}, beside.options().dtype(at::kInt));
  if (!there.is_meta()) there.copy_(at::from_blob(begins.data(), {call.count + 1}, at::kInt));
  return there;
}

/// Rows of x [T, heads * d] as [rows, heads, d], a view.
Tensor rows_of(const Tensor& x, int64_t heads, int64_t first, int64_t rows) {
  return x.narrow(0, first, rows).view({rows, heads, x.size(1) / heads});
}

/// Of flash, and of cuDNN, which has a call for samples of different lengths that it compiles each time.
Most most_of(const Tensor& q, int64_t heads) {
  const bool cudnn = taken(q, heads, plan::kCudnnKeys).kernel == plan::AttentionKernel::cudnn;
  return {.rows = kFlashRows, .tile = kFlashTile, .unlike = true, .alone = cudnn ? plan::kCudnnKeys : 0};
}

/// [Note: cuDNN's log-sum-exp] LibTorch has had it as [samples, heads, rows, 1] and without the last dim; a backward takes what
/// its forward gave.
std::atomic<bool> lse_is_column{true};

/// cuDNN's plan of a backward is kept by the shapes and strides of q, k and v alone, so d_out has one layout: contiguous rows.
/// What a kernel made of all samples [samples, heads, rows, d], as [T, heads * d]: where it lies, if it lies so.
Tensor bound(const Tensor& made, const Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView no_view_of_another;
  return made.transpose(1, 2).reshape(like.sizes());
}

AttentionResult fused_forward(const AttentionInputs& in, int64_t heads, double scale, const Offsets& q_at,
                              const Offsets& k_at, const AttentionResult& into) {
  AttentionResult result = into;
  each_call(in.q, q_at, k_at, most_of(in.q, heads), [&](const Samples& call) {
    if (call.all_queries == 0) return;
    const plan::AttentionTaken by = taken(in.q, heads, call.keys);
    note(in.q, by, /*forward=*/true);
    const bool binds = !result.out.defined() && !result.lse.defined() && call.all_queries == in.q.size(0);
    const auto take = [&](const auto& place, const auto& got) {
      if (!call.alike || !binds) {
        result = places_for(in, heads, result);
        const auto [to_out, to_lse] = place();
        to_out.copy_(std::get<0>(got));
        to_lse.copy_(std::get<1>(got).narrow(-1, 0, to_lse.size(-1)));
        return;
      }
      const at::AutoDispatchBelowADInplaceOrView no_view_of_another;
      result.out = bound(std::get<0>(got), in.q);
      result.lse = std::get<1>(got).narrow(-1, 0, call.queries).transpose(0, 1).reshape({heads, in.q.size(0)});
    };
    if (call.alike) {
      const Tensor query = samples_of(in.q, heads, call.q, call.count, call.queries),
                   key = samples_of(in.k, heads, call.k, call.count, call.keys),
                   value = samples_of(in.v, heads, call.k, call.count, call.keys);
      const auto place = [&] {
        return std::pair(samples_of(result.out, heads, call.q, call.count, call.queries),
                         columns_of(result.lse, call.q, call.count, call.queries));
      };
      if (by.kernel == plan::AttentionKernel::cudnn) {
        note_shape(call, heads, query.size(3));
        if (!has_kernels(query)) return take(place, on_meta::cudnn_forward(query));
        auto got =
            at::_scaled_dot_product_cudnn_attention(query, key, value, /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
                                                    /*dropout_p=*/0.0, /*is_causal=*/false,
                                                    /*return_debug_mask=*/false, scale);
        Tensor& sums = std::get<1>(got);
        lse_is_column = sums.dim() == 4;
        if (sums.dim() == 4) sums = sums.squeeze(3);
        return take(place, got);
      }
      if (!has_kernels(query)) return take(place, on_meta::forward(query, key));
      return take(place,
                  at::_scaled_dot_product_flash_attention(query, key, value, /*dropout_p=*/0.0, /*is_causal=*/false,
                                                          /*return_debug_mask=*/false, scale));
    }
    const Tensor query = rows_of(in.q, heads, call.q, call.all_queries),
                 key = rows_of(in.k, heads, call.k, call.all_keys), value = rows_of(in.v, heads, call.k, call.all_keys),
                 q_begins = begins_of(q_at, call, query), k_begins = begins_of(k_at, call, key);
    const auto place = [&] {
      return std::pair(rows_of(result.out, heads, call.q, call.all_queries),
                       result.lse.narrow(1, call.q, call.all_queries));
    };
    if (!has_kernels(query)) return take(place, on_meta::forward_of_unlike(query));
    take(place,
         at::_flash_attention_forward(query, key, value, q_begins, k_begins, call.queries, call.keys, /*dropout_p=*/0.0,
                                      /*is_causal=*/false, /*return_debug_mask=*/false, scale));
  });
  return places_for(in, heads, result);
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

AttentionInputs fused_backward(const AttentionInputs& in, const Tensor& out, const Tensor& d_out, const Tensor& lse,
                               int64_t heads, const Offsets& q_at, const Offsets& k_at, const AttentionInputs& into) {
  AttentionInputs grads = into;
  const Tensor none = at::empty({2}, in.q.options().dtype(at::kLong));  // the state of a dropout that is off: not read
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(1) / heads));
  each_call(in.q, q_at, k_at, most_of(in.q, heads), [&](const Samples& call) {
    if (call.all_queries == 0) {
      grads = places_for(in, grads);
      for (const Tensor& grad : {grads.k, grads.v}) grad.narrow(0, call.k, call.all_keys).zero_();
      return;
    }
    const plan::AttentionTaken by = taken(in.q, heads, call.keys);
    note(in.q, by, /*forward=*/false);
    const bool binds = call.alike && !grads.q.defined() && !grads.k.defined() && !grads.v.defined() &&
                       call.all_queries == in.q.size(0) && call.all_keys == in.k.size(0);
    const auto take = [&](const auto& place, const auto& got) {
      if (binds) {
        grads = {bound(std::get<0>(got), in.q), bound(std::get<1>(got), in.k), bound(std::get<2>(got), in.v)};
        return;
      }
      grads = places_for(in, grads);
      const AttentionInputs to = place();
      to.q.copy_(std::get<0>(got)), to.k.copy_(std::get<1>(got)), to.v.copy_(std::get<2>(got));
    };
    const auto form = [&](const auto& of_queries, const auto& of_keys, const AttentionInputs& x) {
      return AttentionInputs{of_queries(x.q), of_keys(x.k), of_keys(x.v)};
    };
    if (call.alike) {
      const auto queries = [&](const Tensor& x) { return samples_of(x, heads, call.q, call.count, call.queries); };
      const auto keys = [&](const Tensor& x) { return samples_of(x, heads, call.k, call.count, call.keys); };
      const AttentionInputs x = form(queries, keys, in);
      const auto place = [&] { return form(queries, keys, grads); };
      const Tensor sums = columns_of(lse, call.q, call.count, call.queries).contiguous();
      if (by.kernel == plan::AttentionKernel::cudnn) {
        check_internal(d_out.is_contiguous() && out.is_contiguous(), "ops.attention",
                       "the output and its gradient must be contiguous");
        note_shape(call, heads, x.q.size(3));
        if (!has_kernels(x.q)) return take(place, on_meta::cudnn_backward(x.q, x.k, x.v));
        return take(place,
                    at::_scaled_dot_product_cudnn_attention_backward(
                        queries(d_out), x.q, x.k, x.v, queries(out), lse_is_column ? sums.unsqueeze(3) : sums, none,
                        none, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, call.queries, call.keys,
                        /*dropout_p=*/0.0, /*is_causal=*/false, scale));
      }
      if (!has_kernels(x.q)) return take(place, on_meta::backward(x.q, x.k, x.v));
      return take(place, at::_scaled_dot_product_flash_attention_backward(
                             queries(d_out), x.q, x.k, x.v, queries(out), sums, /*cum_seq_q=*/{}, /*cum_seq_k=*/{},
                             call.queries, call.keys, /*dropout_p=*/0.0, /*is_causal=*/false, none, none, scale));
    }
    const auto queries = [&](const Tensor& x) { return rows_of(x, heads, call.q, call.all_queries); };
    const auto keys = [&](const Tensor& x) { return rows_of(x, heads, call.k, call.all_keys); };
    const AttentionInputs x = form(queries, keys, in);
    const auto place = [&] { return form(queries, keys, grads); };
    const Tensor sums = lse.narrow(1, call.q, call.all_queries).contiguous(), q_begins = begins_of(q_at, call, x.q),
                 k_begins = begins_of(k_at, call, x.k);
    if (!has_kernels(x.q)) return take(place, on_meta::backward_of_unlike(x.q, x.k, x.v, call.count));
    take(place, at::_flash_attention_backward(queries(d_out), x.q, x.k, x.v, queries(out), sums, q_begins, k_begins,
                                              call.queries, call.keys, /*dropout_p=*/0.0, /*is_causal=*/false, none,
                                              none, scale));
  });
  return places_for(in, grads);
}

constexpr Most kProducts = {.rows = kQueries};

}  // namespace

AttentionResult attention(const AttentionInputs& in, const Tensor& bias, int64_t heads, double scale,
                          const Offsets& q_at, const Offsets& k_at, const AttentionResult& into) {
  if (!bias.defined() && !takes_products(in.q, heads)) return fused_forward(in, heads, scale, q_at, k_at, into);
  const AttentionResult result = places_for(in, heads, into);
  if (!bias.defined()) note(in.q, taken(in.q, heads, 1), /*forward=*/true);
  each_call(in.q, q_at, k_at, kProducts, [&](const Samples& call) {
    const auto floats = [&](const Tensor& x, int64_t first, int64_t rows) {  // [samples * heads, rows, d]
      return as_floats(samples_of(x, heads, first, call.count, rows)).flatten(0, 1);
    };
    const Tensor key = floats(in.k, call.k, call.keys), value = floats(in.v, call.k, call.keys);
    each_part(in.q, call.queries, [&](int64_t at, int64_t rows) {  // several samples are one part
      const int64_t first = call.q + at;
      const Tensor scores = floats(in.q, first, rows).bmm(key.transpose(1, 2));
      if (bias.defined()) scores.add_(bias.narrow(1, at, rows));
      scores.mul_(scale);
      const Tensor top = scores.amax({2}, /*keepdim=*/true);
      scores.sub_(top).exp_();
      const Tensor sums = scores.sum(2, /*keepdim=*/true);
      samples_of(result.out, heads, first, call.count, rows)
          .copy_(scores.bmm(value).div_(sums).unflatten(0, {call.count, heads}));
      columns_of(result.lse, first, call.count, rows)
          .copy_((top + sums.log()).squeeze(2).unflatten(0, {call.count, heads}));
    });
  });
  return result;
}

AttentionInputs attention_backward(const AttentionInputs& in, const Tensor& out, const Tensor& d_out, const Tensor& lse,
                                   const Tensor& delta, int64_t heads, const Offsets& q_at, const Offsets& k_at,
                                   const AttentionInputs& into) {
  if (!takes_products(in.q, heads))
    return fused_backward(in, out.defined() ? out : output_along(d_out, delta, heads), d_out, lse, heads, q_at, k_at,
                          into);  // [Note: delta for flash]
  const AttentionInputs grads = places_for(in, into);
  const double scale = 1 / std::sqrt(static_cast<double>(in.q.size(1) / heads));
  each_call(in.q, q_at, k_at, kProducts, [&](const Samples& call) {
    const auto floats = [&](const Tensor& x, int64_t first, int64_t rows) {
      return as_floats(samples_of(x, heads, first, call.count, rows)).flatten(0, 1);
    };
    const auto columns = [&](const Tensor& x, int64_t first, int64_t rows) {
      return columns_of(x, first, call.count, rows).flatten(0, 1);
    };
    const auto put = [&](const Tensor& to, int64_t first, int64_t rows, const Tensor& values) {
      samples_of(to, heads, first, call.count, rows).copy_(values.unflatten(0, {call.count, heads}));
    };
    const Tensor key = floats(in.k, call.k, call.keys), value = floats(in.v, call.k, call.keys);
    const Tensor d_key = at::zeros(key.sizes(), key.options()), d_value = at::zeros(key.sizes(), key.options());
    each_part(in.q, call.queries, [&](int64_t at, int64_t rows) {
      const int64_t first = call.q + at;
      const Tensor query = floats(in.q, first, rows), up = floats(d_out, first, rows);
      const Tensor dot = delta.defined() ? columns(delta, first, rows) : (floats(out, first, rows) * up).sum(2);
      const Tensor p = query.bmm(key.transpose(1, 2)).mul_(scale).sub_(columns(lse, first, rows).unsqueeze(2)).exp_();
      d_value.baddbmm_(p.transpose(1, 2), up);
      const Tensor d_scores = up.bmm(value.transpose(1, 2)).sub_(dot.unsqueeze(2)).mul_(p).mul_(scale);
      put(grads.q, first, rows, d_scores.bmm(key));
      d_key.baddbmm_(d_scores.transpose(1, 2), query);
    });
    put(grads.k, call.k, call.keys, d_key), put(grads.v, call.k, call.keys, d_value);
  });
  return grads;
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

// Linear attention in two steps (rows.h).

namespace {

/// Calls body(sample, rows [heads, n, d] of an operand) for samples with rows.
template <class Body>
void each_sample_with_rows(const Offsets& at, int64_t heads, const Body& body) {
  for (size_t s = 0; s + 1 < at.size(); ++s)
    if (const int64_t rows = at[s + 1] - at[s]; rows > 0)
      body(static_cast<int64_t>(s), [&, first = at[s], rows, heads](const Tensor& x) {
        return x.narrow(0, first, rows).view({rows, heads, -1}).transpose(0, 1);
      });
}

/// A state's products [heads, d, d] and sums [heads, 1, d].
Tensor products_of(const Tensor& state) { return state.narrow(1, 0, state.size(2)); }
Tensor sums_of(const Tensor& state) { return state.narrow(1, state.size(2), 1); }
Tensor above_zero(const Tensor& x) { return at::threshold(as_floats(x), 0, 0); }  // at::relu has no meta form

}  // namespace

Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& plain_k, const Tensor& values, int64_t heads,
                               const Offsets& at) {
  const Tensor k = above_zero(plain_k), rotated = rotated_k.is_same(plain_k) ? k : as_floats(rotated_k),
               v = as_floats(values);
  const int64_t d = k.size(1) / heads;
  const Tensor states = at::zeros({static_cast<int64_t>(at.size()) - 1, heads, d + 1, d}, k.options());
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = states.select(0, s);
    products_of(state).copy_(rows(rotated).transpose(1, 2).bmm(rows(v)));
    sums_of(state).copy_(rows(k).sum(1, /*keepdim=*/true));
  });
  return states;
}

Kernels::StatesGradients linear_attention_states_backward(const Tensor& up, const Tensor& rotated_k, const Tensor& k,
                                                          const Tensor& values, bool same, int64_t heads,
                                                          const Offsets& at) {
  const Tensor rotated = same ? above_zero(k) : as_floats(rotated_k), v = as_floats(values);
  const Tensor d_rotated = at::empty_like(rotated), d_v = at::empty_like(v),
               d_k = same ? d_rotated : at::empty_like(rotated);
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = up.select(0, s);
    rows(d_rotated).copy_(rows(v).bmm(products_of(state).transpose(1, 2)));
    rows(d_v).copy_(rows(rotated).bmm(products_of(state)));
    same ? rows(d_k).add_(sums_of(state)) : rows(d_k).copy_(sums_of(state).expand_as(rows(d_k)));
  });
  const Tensor masked = at::threshold_backward(d_k, as_floats(k), 0);
  return {same ? masked : d_rotated, masked, d_v};
}

Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& plain_q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps, Tensor& down) {
  const Tensor q = above_zero(plain_q), rotated = rotated_q.is_same(plain_q) ? q : as_floats(rotated_q);
  const Tensor out = at::empty_like(q);
  down = at::empty({q.size(0), heads}, q.options());
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = states.select(0, s), divisor = (rows(q) * sums_of(state)).sum(2, true).add_(eps);
    rows(out).copy_(rows(rotated).bmm(products_of(state)).div_(divisor));
    rows(down).copy_(divisor);
  });
  return out;
}

Kernels::ResultGradients linear_attention_result_backward(const Tensor& up_y, const Kernels::SavedResult& given,
                                                          bool same, int64_t heads, const Offsets& at) {
  const Tensor dy = as_floats(up_y);
  const Tensor q = above_zero(given.q);
  const Kernels::SavedResult saved = {same ? q : as_floats(given.rotated), q, given.states, as_floats(given.out),
                                      given.down};
  const Tensor d_q = at::empty_like(saved.q), d_rotated = same ? d_q : at::empty_like(saved.q),
               d_states = at::zeros(saved.states.sizes(), saved.states.options());
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = saved.states.select(0, s), d_state = d_states.select(0, s);
    const Tensor up = rows(dy) / rows(saved.down), slope = (up * rows(saved.out)).sum(2, true).neg_();
    rows(d_q).copy_(slope * sums_of(state));
    sums_of(d_state).copy_((slope * rows(saved.q)).sum(1, /*keepdim=*/true));
    const Tensor back = up.bmm(products_of(state).transpose(1, 2));
    same ? rows(d_rotated).add_(back) : rows(d_rotated).copy_(back);
    products_of(d_state).copy_(rows(saved.rotated).transpose(1, 2).bmm(up));
  });
  const Tensor masked = at::threshold_backward(d_q, as_floats(given.q), 0);
  return {same ? masked : d_rotated, masked, d_states};
}

}  // namespace tessera::ops::aten
