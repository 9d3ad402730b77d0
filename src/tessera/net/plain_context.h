#pragma once
// The reference of every technique: one rank, weights in a map, plain ATen operators and ordinary autograd.
//
//   WeightMap weights = ...;                                // full parameter names; leaves that may require grad
//   Tensor out = run_plain(model.units(), weights, batch);  // the units in a loop
//   out.sum().backward();                                   // weights["blocks.0.ffn.0.weight"].grad()
#include <map>
#include <string>

#include "tessera/net/model.h"

namespace tessera::net {

using WeightMap = std::map<std::string, Tensor, std::less<>>;

class PlainContext final : public Context {
 public:
  /// Borrows all three. Sites are looked up as prefix + site.
  PlainContext(const WeightMap& weights, std::string prefix, const Tokens& tokens)
      : weights_(weights), prefix_(std::move(prefix)), tokens_(tokens) {}

  const Tokens& tokens() const override { return tokens_; }
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
  Tensor weight(std::string_view site, std::string_view suffix) const;  ///< throws naming the nearest known one
  Tensor optional(std::string_view site, std::string_view suffix) const;

  const WeightMap& weights_;
  const std::string prefix_;
  const Tokens& tokens_;
};

/// Runs all units in a loop; the last unit's boundary tensor.
Tensor run_plain(const std::vector<std::unique_ptr<Unit>>& units, const WeightMap& weights, const Batch& batch);

}  // namespace tessera::net
