#include "tessera/engine/context.h"

#include "tessera/engine/saved.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

ops::WeightSite& ShardContext::weight(std::string_view site, std::string_view suffix) {
  return store_.site(unit_, std::string(site).append(suffix));
}
ops::WeightSite* ShardContext::bias(std::string_view site) { return store_.find(unit_, std::string(site) + ".bias"); }

Tensor ShardContext::linear(std::string_view site, const Tensor& x) {
  SavedStorages::at_site(site);
  return ops::linear(x, weight(site, ".weight"), bias(site), store_.anchor(unit_));
}
Tensor ShardContext::gelu_linear(std::string_view site, const Tensor& x) {
  SavedStorages::at_site(site);
  return ops::gelu_linear(x, weight(site, ".weight"), bias(site), store_.anchor(unit_));
}
Tensor ShardContext::layer_norm(std::string_view site, const Tensor& x, double eps) {
  SavedStorages::at_site(site);
  return ops::layer_norm(x, weight(site, ".weight"), weight(site, ".bias"), eps, store_.anchor(unit_));
}
Tensor ShardContext::rms_norm(std::string_view site, const Tensor& x, double eps) {
  SavedStorages::at_site(site);
  return ops::rms_norm(x, weight(site, ".weight"), eps, store_.anchor(unit_));
}
Tensor ShardContext::rms_norm_rope(std::string_view site, const Tensor& x, int64_t heads, double eps) {
  SavedStorages::at_site(site);
  return ops::rms_norm_rope(x, weight(site, ".weight"), tokens_.cos, tokens_.sin, heads, eps, store_.anchor(unit_));
}
Tensor ShardContext::modulated_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                                    double eps) {
  SavedStorages::at_site(site);
  return ops::modulated_norm(x, shift, scale, tokens_.rows, eps);
}
Tensor ShardContext::gated_residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor& gate) {
  SavedStorages::at_site(site);
  return ops::gated_residual(x, y, gate, tokens_.rows, site != mode_.unneeded);
}
Tensor ShardContext::attend(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                            const std::vector<int64_t>& k_offsets) {
  SavedStorages::at_site(site);
  if (mode_.on_attention) mode_.on_attention(site, q, k);
  const ops::AttentionResult* known = nullptr;
  ops::AttentionResult* keep = nullptr;
  if (mode_.known)
    if (const auto it = mode_.known->find(site); it != mode_.known->end()) known = &it->second;
  if (mode_.keep)
    if (const auto it = mode_.keep->find(site); it != mode_.keep->end()) keep = &it->second;
  return ops::attention(q, k, v, heads, tokens_.offsets, k_offsets, keep, known);
}
Tensor ShardContext::self_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                    int64_t heads) {
  return attend(site, q, k, v, heads, tokens_.offsets);
}
Tensor ShardContext::cross_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                                     int64_t heads) {
  return attend(site, q, k, v, heads, tokens_.context_offsets);
}
Tensor ShardContext::biased_attention(std::string_view, const Tensor& q, const Tensor& k, const Tensor& v,
                                      int64_t heads, const Tensor& bias) {
  return ops::attention_bias(q, k, v, heads, bias.contiguous());
}
Tensor ShardContext::param(std::string_view site) {
  SavedStorages::at_site(site);
  return ops::param(weight(site, ""), store_.anchor(unit_));
}
Tensor ShardContext::embedding(std::string_view site, const Tensor& ids) {
  return ops::embedding(ids, weight(site, ".weight"), store_.anchor(unit_));
}

}  // namespace tessera::engine
