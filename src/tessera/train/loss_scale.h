#pragma once
// Dynamic loss scaling of a run: gradients are scaled into the range of fp16, where something is fp16, and a step whose
// gradients overflow is skipped. Every rank decides alike, because all have the same norm.
//
//   LossScale scale(plan, recipe);
//   objective.scale_gradients(scale.scale().value_or(1));
//   if (const std::string why = scale.end_step(step, std::isfinite(norm)); !why.empty()) ...    // no update
#include <functional>
#include <optional>
#include <string>

#include "tessera/optim/grad_scaler.h"
#include "tessera/plan/plan.h"

namespace tessera::checkpoint {
struct Manifest;
}

namespace tessera::recipe {
struct Recipe;
}

namespace tessera::train {

class LossScale {
 public:
  LossScale() = default;  ///< none
  /// None where nothing of the plan is fp16.
  LossScale(const plan::Plan& plan, const recipe::Recipe& recipe);

  std::optional<double> scale() const;  ///< of the step to come
  /// Ends a step with a finite loss. Why its gradients are not to be used, in words; empty when they are. Throws
  /// UserError (not_finite) when they overflow at every scale; `kept`: what there is to go back to then.
  std::string end_step(int64_t step, bool finite, const std::function<std::string()>& kept = {});

  void save(checkpoint::Manifest& manifest) const;
  void restore(const checkpoint::Manifest& manifest);  ///< what was saved without a scale begins with the recipe's

 private:
  std::optional<optim::GradScaler> scaler_;
};

}  // namespace tessera::train
