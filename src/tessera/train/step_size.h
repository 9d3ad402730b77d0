#pragma once
// Step sizes that an optimiser such as Prodigy estimates itself ([Note: totals] of net/unit_update.h), one for each
// expert. They are equal on all ranks, because all have the totals of all ranks.
//
//   StepSize size(recipe, experts);
//   size.take(reports);                                           // the totals of the updates before this step
//   decision.control = size.armed(expert, *decision.control);     // those of these updates come with the next reports
#include <optional>
#include <vector>

#include "tessera/optim/prodigy.h"
#include "tessera/train/step_report.h"

namespace tessera::checkpoint {
struct Manifest;
}

namespace tessera::recipe {
struct Recipe;
}

namespace tessera::train {

class StepSize {
 public:
  StepSize() = default;  ///< none
  /// None where the recipe's optimiser has none.
  StepSize(const recipe::Recipe& recipe, size_t experts);

  /// The settings of a part of the run; what was found so far stays.
  void use(const recipe::Recipe& recipe);
  /// The step size of the expert's next update.
  std::optional<double> of(size_t expert) const;
  /// The control with it; its updates run before the next take().
  net::StepControl armed(size_t expert, net::StepControl control);
  /// Whether updates were made whose totals are not taken yet.
  bool pending() const { return pending_.has_value(); }
  void take(const std::vector<StepReport>& ranks);
  void take(const std::vector<net::Totals>& ranks);

  void save(checkpoint::Manifest& manifest) const;
  /// Throws UserError (input) for a checkpoint without them, or of another number of experts.
  void restore(const checkpoint::Manifest& manifest);

 private:
  struct Update {
    size_t expert;
    net::StepControl control;
  };
  optim::ProdigyOptions options_;
  std::vector<optim::ProdigySize> sizes_;
  std::optional<Update> pending_;
};

}  // namespace tessera::train
