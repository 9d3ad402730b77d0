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
  Tensor linear(std::string_view site, const Tensor& x, const Linear& how = {}) override;
  Tensor norm(std::string_view site, const Tensor& x, const Norm& how, int space = 0) override;
  Tensor rope(std::string_view site, const Tensor& x, int64_t heads, RopeStyle style, int space = 0) override;
  Tensor residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor* gate = nullptr, int space = 0,
                  bool multiplied = false) override;
  Tensor attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                   const Segments& segments = {}, const Softmax& softmax = {}) override;
  Tensor linear_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                          double eps, const Rotated& rotated = {}) override;
  Tensor conv(std::string_view site, const Tensor& x, const Conv& how, int space = 0) override;
  Tensor unfold(std::string_view site, const Tensor& x, const Conv& how, int space = 0) override;
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
