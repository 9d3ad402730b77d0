#include "attention.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "host_forms.h"
#include "memory.h"

namespace tessera::testing {

namespace {

using at::Tensor;

AttentionCalls calls;
bool flat_statistics = false;

/// Of one sample on the CPU, [heads, rows, d] in fp32.
std::pair<Tensor, Tensor> plain(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const Tensor scores = q.bmm(k.transpose(1, 2)) * scale, lse = scores.logsumexp({2});
  return {(scores - lse.unsqueeze(2)).exp().bmm(v), lse};
}
struct Gradients {
  Tensor q, k, v;
};
Gradients plain_backward(const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse, double scale) {
  const Tensor p = (q.bmm(k.transpose(1, 2)) * scale - lse.unsqueeze(2)).exp();
  const Tensor d = (up.bmm(v.transpose(1, 2)) - (up * out).sum(2, true)) * p * scale;
  return {d.bmm(k), d.transpose(1, 2).bmm(q), p.transpose(1, 2).bmm(up)};
}

/// A call: its operands as tensors of the CPU over the same bytes, and its results on the device.
class Call {
 public:
  Call(const char* name, std::initializer_list<Tensor> operands) {
    std::vector<Use> uses;
    for (const Tensor& t : operands) {
      TORCH_CHECK(t.is_privateuseone(), name, ": an operand is on ", t.device());
      host_.of(t), uses.push_back(use_of(t, false));
    }
    timeline().begin(name, uses);
  }
  Tensor of(const Tensor& t) { return host_.of(t); }
  Tensor floats(const Tensor& t) { return host_.of(t).to(at::kFloat); }
  /// In dtype and layout of an operand.
  Tensor back_as(const Tensor& like, const Tensor& values) {
    return host_.back(at::empty_like(host_.of(like)).copy_(values));
  }
  Tensor like(const Tensor& operand) { return host_.back(at::empty_like(host_.of(operand))); }
  Tensor back(const Tensor& values) { return host_.back(values.contiguous()); }

 private:
  HostForms host_;
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
using Backward = std::tuple<Tensor, Tensor, Tensor>;

/// Of so many products of queries and keys, each of all with all.
double flops_of(const Tensor& q, const Tensor& k, int products) {
  return 2.0 * products * static_cast<double>(q.numel()) * static_cast<double>(k.size(2));
}

/// q, k, v [samples, heads, rows, d].
std::pair<Tensor, Tensor> batched(Call& call, const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  timeline().computes(flops_of(q, k, 2));
  if (sizes_alone())
    return {call.like(q), at::empty({q.size(0), q.size(1), q.size(2)}, at::device(at::kMeta).dtype(at::kFloat))};
  std::vector<Tensor> outs, sums;
  for (int64_t s = 0; s < q.size(0); ++s) {
    const auto [out, lse] = plain(call.floats(q)[s], call.floats(k)[s], call.floats(v)[s], scale);
    outs.push_back(out), sums.push_back(lse);
  }
  return {call.back_as(q, at::stack(outs)), at::stack(sums)};
}
/// lse [samples, heads, rows].
Backward batched_backward(Call& call, const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& out, const Tensor& lse, double scale) {
  timeline().computes(flops_of(q, k, 5));
  if (sizes_alone()) return {call.like(q), call.like(k), call.like(v)};
  std::vector<Tensor> dq, dk, dv;
  const auto floats = [&](const Tensor& t, int64_t s) { return call.floats(t)[s]; };
  for (int64_t s = 0; s < q.size(0); ++s) {
    const Gradients g =
        plain_backward(floats(up, s), floats(q, s), floats(k, s), floats(v, s), floats(out, s), lse[s], scale);
    dq.push_back(g.q), dk.push_back(g.k), dv.push_back(g.v);
  }
  return {call.back_as(q, at::stack(dq)), call.back_as(k, at::stack(dk)), call.back_as(v, at::stack(dv))};
}

Forward flash(const Tensor& q, const Tensor& k, const Tensor& v, double, bool, bool, std::optional<double> scale) {
  ++calls.alike;
  TORCH_CHECK(q.dim() == 4 && q.stride(3) == 1 && k.stride(3) == 1 && q.size(0) == k.size(0));
  Call call("aten::_scaled_dot_product_flash_attention", {q, k, v});
  const auto [out, lse] = batched(call, q, k, v, *scale);
  return {out, call.back(lse), {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

Backward flash_backward(const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const Tensor&, const Tensor&, c10::SymInt most_q, c10::SymInt most_k, double,
                        bool, const Tensor&, const Tensor&, std::optional<double> scale) {
  ++calls.alike;
  TORCH_CHECK(most_q == q.size(2) && most_k == k.size(2) && lse.is_contiguous());
  Call call("aten::_scaled_dot_product_flash_attention_backward", {up, q, k, v, out, lse});
  return batched_backward(call, up, q, k, v, out, call.of(lse), *scale);
}

/// Rows [begin, end) of sample s of x [rows, heads, d], as [heads, rows, d].
Tensor sample(Call& call, const Tensor& x, const Tensor& begins, int64_t s) {
  return call.floats(x).slice(0, begins[s].item<int>(), begins[s + 1].item<int>()).transpose(0, 1);
}
/// Where each sample begins, on the CPU.
Tensor checked_begins(Call& call, const Tensor& begins, int64_t rows, const c10::SymInt& most) {
  TORCH_CHECK(begins.scalar_type() == at::kInt && begins.is_contiguous());
  const Tensor at = call.of(begins);
  TORCH_CHECK(at[0].item<int>() == 0 && at[-1].item<int>() == rows && at.diff().max().item<int>() == most);
  return at;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_of_unlike(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& q_begins,
    const std::optional<Tensor>& k_begins, c10::SymInt most_q, c10::SymInt most_k, double, bool, bool,
    std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>, const std::optional<Tensor>&,
    const std::optional<Tensor>&) {
  ++calls.unlike;
  Call call("aten::_flash_attention_forward", {q, k, v, *q_begins, *k_begins});
  const Tensor q_at = checked_begins(call, *q_begins, q.size(0), most_q),
               k_at = checked_begins(call, *k_begins, k.size(0), most_k);
  std::vector<Tensor> outs, sums;
  for (int64_t s = 0; s + 1 < q_at.size(0); ++s) {
    const auto [out, lse] = plain(sample(call, q, q_at, s), sample(call, k, k_at, s), sample(call, v, k_at, s), *scale);
    outs.push_back(out.transpose(0, 1)), sums.push_back(lse);
  }
  return {call.back_as(q, at::cat(outs)), call.back(at::cat(sums, 1)), {}, {}, {}};
}

Backward flash_backward_of_unlike(const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& out, const Tensor& lse, const Tensor& q_begins, const Tensor& k_begins,
                                  c10::SymInt most_q, c10::SymInt most_k, double, bool, const Tensor&, const Tensor&,
                                  std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>) {
  ++calls.unlike;
  Call call("aten::_flash_attention_backward", {up, q, k, v, out, lse, q_begins, k_begins});
  const Tensor q_at = checked_begins(call, q_begins, q.size(0), most_q),
               k_at = checked_begins(call, k_begins, k.size(0), most_k);
  std::vector<Tensor> dq, dk, dv;
  for (int64_t s = 0; s + 1 < q_at.size(0); ++s) {
    const Tensor sums = call.of(lse).slice(1, q_at[s].item<int>(), q_at[s + 1].item<int>());
    const Gradients g = plain_backward(sample(call, up, q_at, s), sample(call, q, q_at, s), sample(call, k, k_at, s),
                                       sample(call, v, k_at, s), sample(call, out, q_at, s), sums, *scale);
    dq.push_back(g.q.transpose(0, 1)), dk.push_back(g.k.transpose(0, 1)), dv.push_back(g.v.transpose(0, 1));
  }
  return {call.back_as(q, at::cat(dq)), call.back_as(k, at::cat(dk)), call.back_as(v, at::cat(dv))};
}

// cuDNN, as LibTorch 2.11 calls it (ATen/native/cudnn/MHA.cpp) and checks before (transformers/cuda/sdp_utils.cpp): tokens
// outside, heads inside; plans by the shapes and strides of q, k and v, which do not know d_out's.

/// [samples, heads, rows, d] over [samples * rows, heads * d].
void check_layout(const Tensor& t, const char* name) {
  TORCH_CHECK(t.dim() == 4, "cuDNN SDPA: ", name, " has ", t.dim(), " dims");
  const int64_t h = t.size(1), s = t.size(2), d = t.size(3);
  TORCH_CHECK(t.stride(3) == 1 && t.stride(2) == h * d && t.stride(1) == d && t.stride(0) == s * h * d,
              "cuDNN SDPA: ", name, " was not in cuDNN-supported layout: ", t.strides());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0, "cuDNN SDPA: ", name, " is not aligned");
}
void check_operands(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                    double dropout, bool causal) {
  for (const auto& [t, name] : {std::pair(q, "query"), {k, "key"}, {v, "value"}}) {
    check_layout(t, name);
    TORCH_CHECK(
        t.scalar_type() == q.scalar_type() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16),
        "cuDNN SDPA: ", name, " is ", t.scalar_type());
    TORCH_CHECK(t.size(0) == q.size(0) && t.size(1) == q.size(1) && t.size(3) == q.size(3), "cuDNN SDPA: sizes");
    TORCH_CHECK(t.size(2) > 0, "cuDNN SDPA: a length of 0");
  }
  TORCH_CHECK(q.size(3) % 8 == 0 && q.size(3) <= 128, "cuDNN SDPA: head_dim should be no more than 128");
  TORCH_CHECK(k.size(2) == v.size(2) && k.size(2) != 1, "cuDNN SDPA does not support key/value sequence length 1");
  TORCH_CHECK(!bias || !bias->defined(), "cuDNN SDPA: a mask, which is wrong at lengths % 128 = 64 in 9.19");
  TORCH_CHECK(dropout == 0 && !causal);
}

using Key = std::vector<int64_t>;
Key key_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  Key key;
  for (const Tensor& t : {q, k, v})
    for (const at::IntArrayRef part : {t.sizes(), t.strides()}) key.insert(key.end(), part.begin(), part.end());
  return key;
}
thread_local std::map<Key, Key> forwards, backwards;  // the strides that the plan was compiled for
/// The plan of the key, which is compiled for the first caller's strides.
void planned(std::map<Key, Key>& plans, const Key& key, const Key& strides) {
  const auto [plan, fresh] = plans.emplace(key, strides);
  calls.plans += fresh;
  TORCH_CHECK(plan->second == strides, "cuDNN SDPA: its plan was compiled for other strides of grad_output");
}

Forward cudnn(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias, bool lse_wanted,
              double dropout, bool causal, bool, std::optional<double> scale) {
  ++calls.cudnn;
  check_operands(q, k, v, bias, dropout, causal);
  TORCH_CHECK(lse_wanted, "cuDNN SDPA: there is no backward without statistics");
  planned(forwards, key_of(q, k, v), {});
  Call call("aten::_scaled_dot_product_cudnn_attention", {q, k, v});
  const auto [out, lse] = batched(call, q, k, v, *scale);
  const Tensor random = at::empty({}, q.options().dtype(at::kLong));
  return {out, call.back(flat_statistics ? lse : lse.unsqueeze(3)), {}, {}, q.size(2), k.size(2), random, random, {}};
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

Backward cudnn_backward(const Tensor& up, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const Tensor& seed, const Tensor& offset, const Tensor& bias,
                        const Tensor& q_begins, const Tensor& k_begins, c10::SymInt most_q, c10::SymInt most_k,
                        double dropout, bool causal, std::optional<double> scale) {
  ++calls.cudnn;
  TORCH_CHECK(!at::globalContext().deterministicAlgorithms(), "cuDNN SDPA is not deterministic.");
  check_operands(q, k, v, bias, dropout, causal);
  check_layout(up, "grad_output"), check_layout(out, "output");
  TORCH_CHECK(up.sizes() == q.sizes() && out.sizes() == q.sizes() && most_q == q.size(2) && most_k == k.size(2));
  TORCH_CHECK(!q_begins.defined() && !k_begins.defined(), "cuDNN SDPA: its form of many lengths compiles at each call");
  TORCH_CHECK(seed.defined() && offset.defined());
  std::vector<int64_t> statistics = {q.size(0), q.size(1), q.size(2)};
  if (!flat_statistics) statistics.push_back(1);
  TORCH_CHECK(lse.sizes() == statistics && lse.scalar_type() == at::kFloat && lse.is_contiguous(),
              "cuDNN SDPA: statistics of ", lse.sizes());
  planned(backwards, key_of(q, k, v), up.strides().vec());
  Call call("aten::_scaled_dot_product_cudnn_attention_backward", {up, q, k, v, out, lse});
  Backward grads =
      batched_backward(call, up, q, k, v, out, call.of(lse).view({q.size(0), q.size(1), q.size(2)}), *scale);
  const int64_t heads = q.size(0) * q.size(1), rows = round_up(q.size(2), 64);
  const int64_t scores = heads * rows * round_up(k.size(2), 64) * 2, sums = heads * rows * q.size(3) * 4;
  const int64_t bytes = (scores <= int64_t{256} << 20 ? scores : sums) + heads * q.size(2) * 4;
  const Tensor workspace = at::empty({bytes}, q.options().dtype(at::kByte));  // beside the results
  calls.workspace = std::max(calls.workspace, bytes);
  return grads;
}

}  // namespace

AttentionCalls& attention_calls() { return calls; }
void shape_statistics_flat(bool flat) { flat_statistics = flat; }

void register_attention() {
  auto* aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten->impl("_scaled_dot_product_flash_attention", &flash);
  aten->impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  aten->impl("_flash_attention_forward", &flash_of_unlike);
  aten->impl("_flash_attention_backward", &flash_backward_of_unlike);
  aten->impl("_scaled_dot_product_cudnn_attention", &cudnn);
  aten->impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace tessera::testing
