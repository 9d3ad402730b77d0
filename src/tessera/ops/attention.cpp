// Softmax attention within each sample of a packed batch.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/activations.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/rows.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tangent.h"

namespace tessera::ops {

namespace {

double usual_scale(const Tensor& q, int64_t heads) {
  return 1 / std::sqrt(static_cast<float>(div_exact(q.size(1), heads, "ops.attention: channels / heads")));
}

AttentionResult forward_into(const AttentionInputs& in, const Tensor& bias, int64_t heads, double scale,
                             const Offsets& q_at, const Offsets& k_at, const AttentionResult& to) {
  check_internal(in.q.is_contiguous() && in.k.is_contiguous() && in.v.is_contiguous() &&
                     (!to.out.defined() || to.out.is_contiguous()),
                 "ops.attention", "q, k, v and the output must be contiguous");
  return kernels(in.q).attention(in, bias, heads, scale, q_at, k_at, to);
}

Tensor run_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, int64_t heads, double scale,
                   const Offsets& q_at, const Offsets& k_at, Tensor& lse) {
  AttentionResult result = forward_into({q, k, v}, bias, heads, scale, q_at, k_at, {});
  lse = std::move(result.lse);
  return std::move(result.out);
}

struct Attention : Function<Attention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                        const Offsets& q_at, const Offsets& k_at, const AttentionResult* known) {
    Tensor lse = known ? known->lse : Tensor();
    Tensor out = known ? known->out.detach() : run_forward(q, k, v, {}, heads, usual_scale(q, heads), q_at, k_at, lse);
    ctx->save_for_backward({q, k, v, out, lse.unsqueeze(-1)});  // one value for each row: a statistic
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["q_at"] = q_at;
    ctx->saved_data["k_at"] = k_at;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], lse = saved[4].squeeze(-1);
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const Offsets q_at = ctx->saved_data["q_at"].toIntVector(), k_at = ctx->saved_data["k_at"].toIntVector();
    const Tensor d_out = grads[0].contiguous();
    const AttentionInputs d = kernels(q).attention_backward({q, k, v}, out, d_out, lse, {}, heads, q_at, k_at, {});
    return {d.q, d.k, d.v, {}, {}, {}, {}};
  }
};

/// [rows, heads * d] to [heads, rows, d] in fp32.
Tensor by_head(const Tensor& x, int64_t first, int64_t last, int64_t heads) {
  return as_floats(x.slice(0, first, last)).view({last - first, heads, -1}).transpose(0, 1);
}

void check_offsets(const Offsets& q_at, const Offsets& k_at) {
  check_internal(q_at.size() == k_at.size() && q_at.size() > 1, "ops.attention",
                 "queries and keys have different sample counts");
  for (size_t s = 0; s + 1 < q_at.size(); ++s)
    check_internal(q_at[s] <= q_at[s + 1] && k_at[s] < k_at[s + 1], "ops.attention",
                   "sample " + std::to_string(s) + " has no keys");
}

}  // namespace

AttentionTangent::AttentionTangent(const Tensor& q, int64_t heads)
    : sums(at::zeros(q.sizes(), q.options().dtype(at::kFloat))),
      scores(at::zeros({heads, q.size(0)}, q.options().dtype(at::kFloat))) {}

AttentionTangent AttentionTangent::rows(int64_t begin, int64_t count) const {
  AttentionTangent part;
  part.sums = sums.narrow(0, begin, count), part.scores = scores.narrow(1, begin, count);
  return part;
}

/// Some queries at a time, with P = exp(S - lse) and S = q k^T / sqrt(d).
void AttentionTangent::add(const Moving& q, const Moving& k, const Moving& v, const Tensor& lse, const Offsets& q_at,
                           const Offsets& k_at) const {
  constexpr int64_t kScores = int64_t{1} << 22;  // held at once
  const int64_t heads = scores.size(0);
  const double scale = usual_scale(q.value, heads);
  for (size_t s = 0; s + 1 < q_at.size(); ++s) {
    const auto keys = [&](const Tensor& x) { return by_head(x, k_at[s], k_at[s + 1], heads); };
    const Tensor keys_t = keys(k.value).transpose(1, 2), values = keys(v.value);
    const int64_t rows = std::max<int64_t>(1, kScores / (heads * (k_at[s + 1] - k_at[s])));
    for (int64_t first = q_at[s]; first < q_at[s + 1]; first += rows) {
      const int64_t last = std::min(first + rows, q_at[s + 1]);
      const auto queries = [&](const Tensor& x) { return by_head(x, first, last, heads); };
      const Tensor p = at::exp(at::matmul(queries(q.value), keys_t) * scale -
                               lse.slice(1, first, last).unsqueeze(2));  // [heads, rows, keys]
      Tensor d_scores, d;
      if (q.moves()) d_scores = at::matmul(queries(q.tangent), keys_t);
      if (k.moves())
        d_scores = sum_of_tangents({d_scores, at::matmul(queries(q.value), keys(k.tangent).transpose(1, 2))});
      if (d_scores.defined()) {
        d_scores = d_scores * p * scale;
        d = at::matmul(d_scores, values);
        scores.slice(1, first, last).add_(d_scores.sum(2));
      }
      if (v.moves()) d = sum_of_tangents({d, at::matmul(p, keys(v.tangent))});
      if (d.defined()) sums.slice(0, first, last).view({last - first, heads, -1}).add_(d.transpose(0, 1));
    }
  }
}

Tensor AttentionTangent::of(const Tensor& out) const {
  const int64_t heads = scores.size(0);
  const auto split = [&](const Tensor& x) { return x.view({x.size(0), heads, -1}); };
  return (split(sums) - scores.t().unsqueeze(2) * as_floats(split(out))).view(out.sizes()).to(out.scalar_type());
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const Offsets& q_offsets,
                 const Offsets& k_offsets, AttentionResult* keep, const AttentionResult* known) {
  check_offsets(q_offsets, k_offsets);
  if (known)
    check_internal(known->out.defined() && known->out.sizes() == q.sizes(), "ops.attention",
                   "the known result is not that of these queries");
  if (any_moves({&q, &k, &v})) {
    check_internal(!keep && !known, "ops.attention", "forward mode recomputes nothing");
    const Moving mq = parts(q), mk = parts(k), mv = parts(v);
    AttentionResult result;
    result.out =
        run_forward(mq.value, mk.value, mv.value, {}, heads, usual_scale(q, heads), q_offsets, k_offsets, result.lse);
    const AttentionTangent tangent(mq.value, heads);
    tangent.add(mq, mk, mv, result.lse, q_offsets, k_offsets);
    return moving(result.out, tangent.of(result.out));
  }
  if (wants_graph({&q, &k, &v})) {
    check_internal(!keep, "ops.attention", "a result can only be kept of a pass without a graph");
    return Attention::apply(q, k, v, heads, q_offsets, k_offsets, known);
  }
  if (known) return known->out;
  Tensor lse;
  Tensor out = run_forward(q, k, v, {}, heads, usual_scale(q, heads), q_offsets, k_offsets, lse);
  if (keep) *keep = {out, lse};
  return out;
}

void attention_forward(const AttentionInputs& in, int64_t heads, const Offsets& q_at, const Offsets& k_at,
                       const AttentionResult& result) {
  check_offsets(q_at, k_at);
  forward_into(in, {}, heads, usual_scale(in.q, heads), q_at, k_at, result);
}

Tensor attention_delta(const Tensor& out, const Tensor& d_out, int64_t heads) {
  return kernels(out).attention_delta(out, d_out, heads);
}

void attention_backward(const AttentionInputs& in, const Tensor& d_out, const Tensor& lse, const Tensor& delta,
                        int64_t heads, const Offsets& q_at, const Offsets& k_at, const AttentionInputs& grads) {
  check_offsets(q_at, k_at);
  kernels(in.q).attention_backward(in, {}, d_out, lse, delta, heads, q_at, k_at, grads);
}

void merge_attention(const AttentionResult& sum, const AttentionResult& part, int64_t heads) {
  kernels(sum.out).merge_attention(sum, part, heads);
}

Tensor attention_bias(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const Tensor& bias) {
  check_internal(!wants_graph({&q, &k, &v, &bias}), "ops.attention_bias", "has no backward: call it without gradients");
  check_internal(bias.is_contiguous() && bias.sizes() == at::IntArrayRef({heads, q.size(0), k.size(0)}),
                 "ops.attention_bias", "bias must be a contiguous [heads, queries, keys]");
  Tensor lse;
  return run_forward(q, k, v, bias, heads, 1, {0, q.size(0)}, {0, k.size(0)}, lse);
}

std::string why_no_cudnn_attention() {
  constexpr long kNewer = 91501;  // at lengths that are no multiple of 128 older ones are wrong
  const device::Backend* gpu = device::used();
  if (!gpu) return "a CPU computes";
  if (gpu->type != c10::DeviceType::CUDA) {
    const bool there = c10::Dispatcher::singleton()
                           .findSchemaOrThrow("aten::_scaled_dot_product_cudnn_attention", "")
                           .hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
    return there ? "" : "this device has no cuDNN";
  }
  const long version = at::detail::getCUDAHooks().versionRuntimeCuDNN();
  return version > kNewer ? ""
                          : "cuDNN here is of version " + std::to_string(version) + ", expected more than " +
                                std::to_string(kNewer) + " (9.15.1)";
}

void compile_attention(const plan::AttentionUse& use, at::ScalarType type, at::Device device) {
  const AttentionScope scope(plan::Attention::cudnn);
  for (const auto& [samples, heads, queries, keys, head] : use.shapes) {
    const at::TensorOptions half = at::TensorOptions(type).device(device);
    std::vector<int64_t> q_at, k_at;
    for (int64_t s = 0; s <= samples; ++s) q_at.push_back(s * queries), k_at.push_back(s * keys);
    const Tensor q = at::zeros({q_at.back(), heads * head}, half), k = at::zeros({k_at.back(), heads * head}, half);
    const AttentionInputs in = {q, k, k};
    const AttentionResult result =
        kernels(q).attention(in, {}, heads, 1 / std::sqrt(static_cast<double>(head)), q_at, k_at, {});
    kernels(q).attention_backward(in, result.out, q, result.lse, {}, heads, q_at, k_at, {});
  }
}

// Linear attention in two steps (rows.h).

namespace {

struct States : Function<States> {
  static Tensor run(const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads, const Offsets& at) {
    return kernels(k).linear_attention_states(rotated, k, v, heads, at);
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads,
                        const Offsets& at) {
    ctx->save_for_backward({rotated, k, v});
    ctx->saved_data["heads"] = heads, ctx->saved_data["at"] = at;
    ctx->saved_data["same"] = rotated.is_same(k);
    return run(rotated, k, v, heads, at);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor up = grads[0].contiguous();
    const bool same = ctx->saved_data["same"].toBool();
    const auto d = kernels(up).linear_attention_states_backward(
        up, saved[0], saved[1], saved[2], same, ctx->saved_data["heads"].toInt(), ctx->saved_data["at"].toIntVector());
    const at::ScalarType type = saved[1].scalar_type();
    return {d.rotated.to(type), same ? Tensor() : d.k.to(type), d.v.to(type), {}, {}};
  }
};

/// `result` [T, D], rounded to `type` if it is not yet. A quotient by a small sum may be beyond what fp16 has: it becomes fp16's
/// largest value, as in the released program, since an infinity would make every later sum NaN.
Tensor rounded_result(Tensor result, at::ScalarType type) {
  constexpr double kLargestHalf = 65504;
  if (result.scalar_type() == type) return result;
  if (type == at::kHalf) result.clamp_(-kLargestHalf, kLargestHalf);
  return result.to(type);
}

struct FromStates : Function<FromStates> {
  static Tensor run(const Tensor& rotated, const Tensor& q, const Tensor& states, int64_t heads, const Offsets& at,
                    double eps, Tensor& down) {
    return rounded_result(kernels(q).linear_attention_result(rotated, q, states, heads, at, eps, down),
                          q.scalar_type());
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& rotated, const Tensor& q, const Tensor& states,
                        int64_t heads, const Offsets& at, double eps) {
    Tensor down;
    const Tensor out = run(rotated, q, states, heads, at, eps, down);
    ctx->save_for_backward({rotated, q, states, out, down});
    ctx->saved_data["heads"] = heads, ctx->saved_data["at"] = at;
    ctx->saved_data["same"] = rotated.is_same(q);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    const bool same = ctx->saved_data["same"].toBool();
    const auto d = kernels(dy).linear_attention_result_backward(dy, {saved[0], saved[1], saved[2], saved[3], saved[4]},
                                                                same, ctx->saved_data["heads"].toInt(),
                                                                ctx->saved_data["at"].toIntVector());
    const at::ScalarType type = saved[1].scalar_type();
    return {d.rotated.to(type), same ? Tensor() : d.q.to(type), d.states, {}, {}, {}};
  }
};

/// What the states change by: they are bilinear, but for the sums of k, which have no values. k is not below 0.
Tensor states_tangent(const Moving& rotated, const Moving& k, const Moving& v, int64_t heads, const Offsets& at) {
  const auto run = [&](const Tensor& keys, const Tensor& summed, const Tensor& values) {
    return States::run(keys, summed, values, heads, at);
  };
  Tensor by_keys, by_values;
  if (rotated.moves() || k.moves()) {
    const auto tangent = [](const Moving& x) { return x.moves() ? x.tangent : at::zeros_like(x.value); };
    const Tensor summed = tangent(k);
    by_keys =
        run(tangent(rotated).detach(), summed, v.value);  // another tensor than what is summed, and taken as it is
    const int64_t last = by_keys.size(2) - 1;
    for (size_t s = 0; s + 1 < at.size(); ++s)  // of which run() takes what is above 0
      if (at[s] < at[s + 1])
        by_keys[static_cast<int64_t>(s)].select(1, last).copy_(
            as_floats(by_head(summed, at[s], at[s + 1], heads)).sum(1));
  }
  if (v.moves()) {
    by_values = run(rotated.value, k.value, v.tangent);
    by_values.select(2, by_values.size(2) - 1).zero_();
  }
  return sum_of_tangents({by_keys, by_values});
}

/// Of (S q_rot) / (s . q + eps): the tangent of the numerator less the result times that of the divisor, over it.
Tensor result_tangent(const Moving& rotated, const Moving& q, const Moving& states, const Tensor& out,
                      const Tensor& down, int64_t heads, const Offsets& at) {
  const Tensor tangent = at::zeros(out.sizes(), out.options().dtype(at::kFloat));
  const int64_t d = out.size(1) / heads;
  for (size_t s = 0; s + 1 < at.size(); ++s) {
    if (at[s] == at[s + 1]) continue;
    const auto rows = [&](const Tensor& x) { return by_head(x, at[s], at[s + 1], heads); };       // [heads, rows, d]
    const auto products = [&](const Tensor& all) { return all[s].narrow(1, 0, d); };              // [heads, d, d]
    const auto sums = [&](const Tensor& all) { return all[s].narrow(1, d, 1).transpose(1, 2); };  // [heads, d, 1]
    const auto times = [](const Tensor& a, const Tensor& b) { return at::matmul(a, b); };
    Tensor up, below;
    if (states.moves()) {
      up = times(rows(rotated.value), products(states.tangent));
      below = times(rows(q.value), sums(states.tangent));
    }
    if (rotated.moves()) up = sum_of_tangents({up, times(rows(rotated.tangent), products(states.value))});
    if (q.moves()) below = sum_of_tangents({below, times(rows(q.tangent), sums(states.value))});
    if (below.defined()) up = sum_of_tangents({up, -below * rows(out)});
    const Tensor divisors = down.slice(0, at[s], at[s + 1]).t().unsqueeze(2);
    tangent.slice(0, at[s], at[s + 1]).view({at[s + 1] - at[s], heads, d}).transpose(0, 1).copy_(up / divisors);
  }
  return tangent;
}

void check_heads(const Tensor& a, const Tensor& b, int64_t heads, const Offsets& at) {
  const bool fits = a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() && a.size(1) % heads == 0;
  check_internal(fits && at.back() == a.size(0), "ops.linear_attention",
                 "the operands must be contiguous [rows, heads * d] of the samples' rows");
}

}  // namespace

Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& k, const Tensor& v, int64_t heads,
                               const Offsets& at) {
  check_heads(rotated_k, k, heads, at), check_heads(k, v, heads, at);
  if (any_moves({&rotated_k, &k, &v})) {
    const Tensor summed = ops::relu(k);
    const Moving mk = parts(summed), rotated = rotated_k.is_same(k) ? mk : parts(rotated_k), mv = parts(v);
    return moving(States::run(rotated.value, mk.value, mv.value, heads, at),
                  states_tangent(rotated, mk, mv, heads, at));
  }
  if (wants_graph({&rotated_k, &k, &v})) return States::apply(rotated_k, k, v, heads, at);
  return States::run(rotated_k, k, v, heads, at);
}

Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps) {
  check_heads(rotated_q, q, heads, at);
  if (wants_graph({&rotated_q, &q, &states})) return FromStates::apply(rotated_q, q, states, heads, at, eps);
  Tensor down;
  if (any_moves({&rotated_q, &q, &states})) {
    const Tensor plain = ops::relu(q);
    const Moving mq = parts(plain), rotated = rotated_q.is_same(q) ? mq : parts(rotated_q), all = parts(states);
    const Tensor out = FromStates::run(rotated.value, mq.value, all.value, heads, at, eps, down);
    return moving(out, result_tangent(rotated, mq, all, out, down, heads, at));
  }
  return FromStates::run(rotated_q, q, states, heads, at, eps, down);
}

}  // namespace tessera::ops
