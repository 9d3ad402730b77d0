#pragma once
// The engine's Context: the same sites as the plain one, over weight views of the slot the unit occupies, with
// weight gradients written straight into the gradient buffer ([Note: weights outside autograd] in ops/weight.h).
#include "tessera/engine/parallel/parallel.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/context.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

/// Results by site, kept from a forward without a graph for the graph that is rebuilt: what attention made, and of a
/// feed-forward's second linear (Context::gelu_linear) the output alone.
using SiteResults = std::map<std::string, ops::AttentionResult, std::less<>>;

/// What one run of a unit does beyond computing.
struct RunMode {
  std::string_view unneeded = {};      ///< the site whose value nobody will read (net::Unit::output_site), or empty
  SiteResults* keep = nullptr;         ///< receives the results of the sites it names
  const SiteResults* known = nullptr;  ///< sites that are not computed again
  /// Measurement: told of each site whose result can be kept.
  std::function<void(std::string_view site, double flops)> on_result = {};
  const Parallel* parallel = nullptr;  ///< those that the tokens are shared with; lives as long as the graph
};

class ShardContext final : public net::Context {
 public:
  ShardContext(Store& store, int unit, const net::Tokens& tokens, RunMode mode = {})
      : store_(store), unit_(unit), type_(store.compute(unit)), tokens_(tokens), mode_(std::move(mode)) {}

  const net::Tokens& tokens() const override { return tokens_; }
  Tensor linear(std::string_view site, const Tensor& x) override;
  Tensor gelu_linear(std::string_view site, const Tensor& x) override;
  Tensor layer_norm(std::string_view site, const Tensor& x, double eps) override;
  Tensor rms_norm(std::string_view site, const Tensor& x, double eps) override;
  Tensor rms_norm_rope(std::string_view site, const Tensor& x, int64_t heads, double eps) override;
  Tensor modulated_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                        double eps) override;
  Tensor gated_residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor& gate) override;
  Tensor sum(std::string_view site, const Tensor& x, const Tensor& y) override;
  Tensor self_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                        int64_t heads) override;
  Tensor cross_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                         int64_t heads) override;
  Tensor image_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                         int64_t heads) override;
  Tensor frame_norm(std::string_view site, const Tensor& x, const Tensor& shift, const Tensor& scale,
                    double eps) override;
  Tensor frame_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v,
                         int64_t heads) override;
  Tensor biased_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                          const Tensor& bias) override;
  Tensor param(std::string_view site) override;
  Tensor embedding(std::string_view site, const Tensor& ids) override;

 private:
  Tensor attend(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                const std::vector<int64_t>& q_offsets, const std::vector<int64_t>& k_offsets, bool self = false);
  bool tensor_parallel() const { return mode_.parallel && mode_.parallel->tp() > 1; }
  /// How tensor parallelism cuts a site's weight; null: not.
  const plan::ParamSpec* cut(std::string_view site) const;
  const ops::AttentionResult* known(std::string_view site) const;
  ops::AttentionResult* to_keep(std::string_view site) const;
  using RunLinear = std::function<Tensor(const Tensor& x, ops::WeightSite* bias, const Tensor* known)>;
  /// Runs a linear with what its cut asks for before and after. `known`: its result, where it is there.
  Tensor linear_as_cut(std::string_view site, const Tensor& x, const RunLinear& run, const Tensor* known = nullptr);
  const ops::SharedWidth* shared_width(std::string_view site, const Tensor& x) const;
  bool heads_are_shared(const Tensor& q) const;
  std::vector<int64_t> query_offsets(const Tensor& q) const;
  ops::WeightSite& weight(std::string_view site, std::string_view suffix);
  ops::WeightSite* bias(std::string_view site);
  /// The unit's anchor; of a frozen site one that wants no gradient, so that no graph begins there.
  Tensor anchor(const ops::WeightSite& site) const;

  Store& store_;
  const int unit_;
  const at::ScalarType type_;  // of products and attention; what is added up over units stays fp32
  const net::Tokens& tokens_;
  const RunMode mode_;
  // What several linears take in a row is gathered over tp once: the input, by address, and the gathered rows.
  c10::weak_intrusive_ptr<c10::TensorImpl> gathered_of_{c10::intrusive_ptr<c10::TensorImpl>()};
  Tensor gathered_;
};

}  // namespace tessera::engine
