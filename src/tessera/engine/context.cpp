#include "tessera/engine/context.h"

#include "tessera/base/check.h"
#include "tessera/engine/frozen_site.h"
#include "tessera/engine/parallel/attention.h"
#include "tessera/engine/parallel/tensor.h"
#include "tessera/engine/saved.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

namespace {

/// Queries that meet keys: what attention grows with.
double pairs(const std::vector<int64_t>& queries, const std::vector<int64_t>& keys) {
  double sum = 0;
  for (size_t s = 0; s + 1 < queries.size(); ++s)
    sum += static_cast<double>(queries[s + 1] - queries[s]) * static_cast<double>(keys[s + 1] - keys[s]);
  return sum;
}

/// What a linear that is cut so gets for input, of x [rows, cols].
InputPart input_part(const plan::ParamSpec* cut, int64_t tokens, const Parallel* parallel, int64_t cols) {
  if (!cut || (cut->split == plan::Split::rows && cut->whole_input)) return {};
  InputPart part{.tokens = parallel->place(tokens)};
  if (cut->split == plan::Split::columns)
    part.width = cols * parallel->tp(), part.first_column = cols * parallel->tp_rank();
  return part;
}

}  // namespace

ops::WeightSite& ShardContext::weight(std::string_view site, std::string_view suffix) {
  return store_.site(unit_, std::string(site).append(suffix));
}
Tensor ShardContext::anchor(const ops::WeightSite& site) const {
  return site.frozen ? store_.anchor(unit_).detach() : store_.anchor(unit_);
}
ops::WeightSite* ShardContext::bias(std::string_view site) { return store_.find(unit_, std::string(site) + ".bias"); }

const plan::ParamSpec* ShardContext::cut(std::string_view site) const {
  if (!tensor_parallel()) return nullptr;
  const plan::ParamSpec* spec = store_.find_spec(unit_, std::string(site) + ".weight");
  return spec && spec->split != plan::Split::none ? spec : nullptr;
}

const ops::AttentionResult* ShardContext::known(std::string_view site) const {
  if (!mode_.known) return nullptr;
  const auto it = mode_.known->find(site);
  return it == mode_.known->end() ? nullptr : &it->second;
}

ops::AttentionResult* ShardContext::to_keep(std::string_view site) const {
  if (!mode_.keep) return nullptr;
  const auto it = mode_.keep->find(site);
  return it == mode_.keep->end() ? nullptr : &it->second;
}

Tensor ShardContext::linear_as_cut(std::string_view site, const Tensor& x, const RunLinear& run, const Tensor* known) {
  const plan::ParamSpec* spec = cut(site);
  if (!spec || (spec->split == plan::Split::rows && spec->whole_input)) return run(x, bias(site), known);
  if (spec->split == plan::Split::columns) {
    gathered_ = Tensor();
    Tensor unread;  // where the sum is known, this rank's part of it has a shape and no values
    if (known) unread = at::empty({1, 1}, known->options()).expand({x.size(0), known->size(1)});
    return sum_to_shares(run(x, nullptr, known ? &unread : nullptr), tokens_.total(), *mode_.parallel, bias(site),
                         store_.anchor(unit_), known);
  }
  if (!gathered_.defined() || gathered_of_.lock() != x.getIntrusivePtr()) {
    gathered_ = Tensor();
    gathered_ = gather_place(x, tokens_.total(), *mode_.parallel);
    gathered_of_ = c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr());
  }
  return run(gathered_, bias(site), known);
}

/// Of an RMSNorm whose columns the ranks of tp share.
const ops::SharedWidth* ShardContext::shared_width(std::string_view site, const Tensor& x) const {
  const plan::ParamSpec* spec = cut(site);
  if (!spec) return nullptr;
  const auto samples = static_cast<int64_t>(tokens_.offsets.size()) - 1;
  return &mode_.parallel->shared_width(x.size(1) * mode_.parallel->tp(),
                                       spec->whole_input ? plan::Rows::context : plan::Rows::own, samples);
}

Tensor ShardContext::linear(std::string_view site, const Tensor& x) {
  SavedStorages::at_site(site);
  ops::WeightSite& w = weight(site, ".weight");
  return linear_as_cut(site, x, [&](const Tensor& input, ops::WeightSite* b, const Tensor*) {
    const InputPart part = input_part(cut(site), tokens_.total(), mode_.parallel, input.size(1));
    if (w.frozen) return frozen_site(store_, unit_, site, input, b, tokens_, adapters_, /*gelu=*/false, type_, part);
    return ops::linear(input, w, b, store_.anchor(unit_), type_);
  });
}
Tensor ShardContext::gelu_linear(std::string_view site, const Tensor& x) {
  SavedStorages::at_site(site);
  ops::WeightSite& w = weight(site, ".weight");
  // DoRA's magnitude reads this rank's part of the sum in its backward, which a kept sum does not have.
  const bool may_stay = !cut(site) || !store_.find(unit_, std::string(site).append(net::kLoraMagnitude));
  const ops::AttentionResult* there = known(site);
  const Tensor y = linear_as_cut(
      site, x,
      [&](const Tensor& input, ops::WeightSite* b, const Tensor* result) {
        const InputPart part = input_part(cut(site), tokens_.total(), mode_.parallel, input.size(1));
        if (w.frozen)
          return frozen_site(store_, unit_, site, input, b, tokens_, adapters_, /*gelu=*/true, type_, part, result);
        return ops::gelu_linear(input, w, b, store_.anchor(unit_), type_, result);
      },
      there ? &there->out : nullptr);
  if (mode_.on_result && may_stay) mode_.on_result(site, 2 * static_cast<double>(x.numel() * y.size(1)));
  if (ops::AttentionResult* keep = to_keep(site)) keep->out = y;
  return y;
}
Tensor ShardContext::layer_norm(std::string_view site, const Tensor& x, double eps) {
  SavedStorages::at_site(site);
  ops::WeightSite& w = weight(site, ".weight");
  return ops::layer_norm(x, w, weight(site, ".bias"), eps, anchor(w), type_);
}
Tensor ShardContext::rms_norm(std::string_view site, const Tensor& x, double eps) {
  SavedStorages::at_site(site);
  ops::WeightSite& w = weight(site, ".weight");
  return ops::rms_norm(x, w, eps, anchor(w), shared_width(site, x));
}
Tensor ShardContext::rms_norm_rope(std::string_view site, const Tensor& x, int64_t heads, double eps) {
  SavedStorages::at_site(site);
  ops::WeightSite& w = weight(site, ".weight");
  const ops::SharedWidth* shared = shared_width(site, x);
  const int64_t here = shared ? heads / mode_.parallel->tp() : heads;
  return ops::rms_norm_rope(x, w, tokens_.cos, tokens_.sin, here, eps, anchor(w), shared);
}
Tensor ShardContext::modulated_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                                    double eps) {
  SavedStorages::at_site(site);
  return ops::modulated_norm(x, shift, scale, tokens_.rows, eps, type_);
}
Tensor ShardContext::gated_residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor& gate) {
  SavedStorages::at_site(site);
  return ops::gated_residual(x, y, gate, tokens_.rows, site != mode_.unneeded);
}
Tensor ShardContext::sum(std::string_view site, const Tensor& x, const Tensor& y) {
  SavedStorages::at_site(site);
  return ops::sum(x, y);
}
/// Under tensor parallelism queries are those of the place's tokens and this rank's heads, where their linear is cut.
bool ShardContext::heads_are_shared(const Tensor& q) const {
  return tensor_parallel() && q.size(0) == mode_.parallel->place(tokens_.total()).count();
}

/// Where each sample's queries start.
std::vector<int64_t> ShardContext::query_offsets(const Tensor& q) const {
  if (!heads_are_shared(q)) return tokens_.local_offsets();
  const plan::TokenRange place = mode_.parallel->place(tokens_.total());
  return tokens_.local_offsets(place.begin, place.end);
}

Tensor ShardContext::attend(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                            const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets, bool self) {
  SavedStorages::at_site(site);
  gathered_ = Tensor();
  const bool shares_heads = heads_are_shared(q);
  if (shares_heads) heads /= mode_.parallel->tp();
  check_internal(!self || !tensor_parallel() || shares_heads, "engine.context",
                 "self-attention " + std::string(site) + " sees some of the tokens: the model has no table for tp");
  if (mode_.on_result) {
    const double met =
        (self ? tokens_.pairs() : pairs(q_offsets, k_offsets)) * (self && shares_heads ? mode_.parallel->tp() : 1);
    mode_.on_result(site, 4 * met * static_cast<double>(q.size(1)));
  }
  if (self && mode_.parallel && mode_.parallel->cuts_attention())
    return sequence_attention(q, k, v, heads, tokens_, *mode_.parallel, to_keep(site), known(site));
  return ops::attention(q, k, v, heads, q_offsets, k_offsets, to_keep(site), known(site));
}
Tensor ShardContext::self_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                    int64_t heads) {
  return attend(site, q, k, v, heads, tokens_.offsets, tokens_.offsets, /*self=*/true);
}
Tensor ShardContext::cross_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend(site, q, k, v, heads, query_offsets(q), tokens_.context_offsets);
}
Tensor ShardContext::image_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend(site, q, k, v, heads, query_offsets(q), tokens_.image_offsets);
}
Tensor ShardContext::frame_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                                double eps) {
  SavedStorages::at_site(site);
  return ops::modulated_norm(x, shift, scale, tokens_.frames.rows, eps, type_);
}
Tensor ShardContext::frame_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend(site, q, k, v, heads, tokens_.frames.offsets, tokens_.frames.context_offsets);
}
Tensor ShardContext::biased_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                      int64_t heads, const Tensor& bias) {
  return ops::attention_bias(q, k, v, heads, bias.contiguous());
}
Tensor ShardContext::param(std::string_view site) {
  SavedStorages::at_site(site);
  ops::WeightSite& w = weight(site, "");
  return ops::param(w, anchor(w));
}
Tensor ShardContext::embedding(std::string_view site, const Tensor& ids) {
  ops::WeightSite& w = weight(site, ".weight");
  return ops::embedding(ids, w, anchor(w));
}

}  // namespace tessera::engine
