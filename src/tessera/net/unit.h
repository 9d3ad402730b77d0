#pragma once
// A unit is the grain of sharding, gathering, recompute and offload: an embedding stem, a block, a head. Its
// mathematics is one function without hidden state; a model is a list of units (model.h).
//
//   Flow out = unit.forward(ctx, {stream, cond});
#include "tessera/net/context.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::net {

/// The input and output of a unit: the boundary tensors (`stream`), and conditioning shared by all later units (`cond`,
/// set by the stem; a unit that leaves it unchanged returns it empty).
struct Flow {
  std::vector<Tensor> stream;
  std::vector<Tensor> cond;
};

class Unit {
 public:
  virtual ~Unit() = default;
  /// Name, kind and parameters; costs are measured, not declared.
  virtual const plan::UnitSpec& spec() const = 0;
  /// Sites are relative to the unit: "self_attn.q" of unit "blocks.3" has parameter "blocks.3.self_attn.q.weight".
  /// (The stem's and head's unit name is not part of their parameters' names: see `prefix`.)
  virtual Flow forward(Context& ctx, const Flow& in) const = 0;
  /// What precedes a site in parameter names: "blocks.3." for blocks, "" for stems whose sites are whole names.
  virtual std::string prefix() const { return spec().name + "."; }
  /// The site of the gated residual whose value is all that forward returns, or empty: a graph that is rebuilt for the
  /// backward does not compute that value.
  virtual std::string_view output_site() const { return {}; }
  /// FLOPs (2 per multiply-add) of one forward on these tokens.
  virtual double forward_flops(const Tokens& tokens) const = 0;
};

}  // namespace tessera::net
