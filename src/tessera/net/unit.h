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
  /// Name, kind and parameters; costs are measured. A family that declares its units (declare.h) leaves the parameters
  /// out. `prefix` precedes a site in parameter names: sites are relative to the unit, "self_attn.q" of unit "blocks.3"
  /// has parameter "blocks.3.self_attn.q.weight". The sites of a stem are whole names: its prefix is "".
  Unit(plan::UnitSpec spec, std::string prefix) : spec_(std::move(spec)), prefix_(std::move(prefix)) {}
  explicit Unit(plan::UnitSpec spec) : spec_(std::move(spec)), prefix_(spec_.name + ".") {}
  virtual ~Unit() = default;

  virtual Flow forward(Context& ctx, const Flow& in) const = 0;
  /// The site of the gated residual whose value is all that forward returns, or empty: a graph that is rebuilt for the
  /// backward does not compute that value.
  virtual std::string_view output_site() const { return {}; }
  /// The order of the parameters, where it is not that of their use: beginnings of sites, of which the first that fits
  /// holds, and those without one come last. Buffers and files keep the order.
  virtual std::vector<std::string_view> order() const { return {}; }
  const plan::UnitSpec& spec() const { return spec_; }
  void set_parameters(std::vector<plan::ParamSpec> params) { spec_.params = std::move(params); }
  const std::string& prefix() const { return prefix_; }

 private:
  plan::UnitSpec spec_;
  const std::string prefix_;
};

}  // namespace tessera::net
