#include "tessera/plan/unit_sizes.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/optimizers.h"

namespace tessera::plan {

namespace {

/// Whether both are laid out alike: their names differ.
bool same_parameter(const ParamSpec& a, const ParamSpec& b) {
  return a.shape == b.shape && a.trainable == b.trainable && a.split == b.split && a.stored == b.stored &&
         a.whole == b.whole && a.in_8_bits == b.in_8_bits;
}

}  // namespace

UnitSizes::UnitSizes(const ModelSpec& model, const Plan& plan, int rank) {
  check_internal(
      plan.units.size() == model.units.size(), "plan.compile",
      "the plan has " + std::to_string(plan.units.size()) + " units, the model " + std::to_string(model.units.size()));
  const StatesOf states = states_of(plan.states);
  for (int u = 0; u < static_cast<int>(model.units.size()); ++u) {
    const UnitSpec& unit = model.units[static_cast<size_t>(u)];
    const auto same = [&](const Known& known) {
      const UnitSpec& other = model.units[static_cast<size_t>(known.unit)];
      return other.kind == unit.kind &&
             plan.units[static_cast<size_t>(known.unit)].strategy == plan.units[static_cast<size_t>(u)].strategy &&
             std::ranges::equal(other.params, unit.params, same_parameter);
    };
    const auto found = std::ranges::find_if(known_, same);
    of_.push_back(static_cast<size_t>(found - known_.begin()));
    if (found != known_.end()) continue;
    UnitLayout layout = plan.layout(unit, u);
    const int64_t bytes = state_layout(unit, layout, plan.held(layout, rank), states).bytes;
    std::vector<MatrixParts> matrices;
    if (row(plan.states.optimizer).whole) matrices = matrix_parts(plan, unit, layout, rank);
    known_.push_back({u, std::move(layout), bytes, std::move(matrices)});
  }
}

UnitSizes UnitSizes::frozen() && {
  for (Known& known : known_) known.layout.grad_total = known.layout.grad_shard = known.layout.grad_partition = 0;
  return std::move(*this);
}

}  // namespace tessera::plan
