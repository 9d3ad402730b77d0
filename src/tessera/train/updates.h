#pragma once
// What becomes of the passes of a step: with which scale and step size they run, and whether their updates are made.
//
//   Updates updates(ranks, experts, health, proofs, engine.store(), LossScale(plan, train), StepSize(...));
//   objective.begin(updates.armed(pass).data);
//   const Decision decision = updates.decide(pass, step);                            // the same on every rank
#include <optional>
#include <vector>

#include "tessera/engine/engine.h"
#include "tessera/optim/prodigy.h"
#include "tessera/plan/states.h"
#include "tessera/train/checkpoints.h"

namespace tessera::train {

/// Step sizes that an optimiser such as Prodigy estimates itself ([Note: totals] of net/unit_update.h), one for each
/// expert. They are equal on all ranks, because all have the totals of all ranks.
class StepSize {
 public:
  StepSize() = default;  ///< none
  /// None where the optimiser has none.
  StepSize(plan::Optimizer optimizer, const recipe::Recipe::Train& train, size_t experts);

  /// The settings of a part of the run; what was found so far stays.
  void use(const recipe::Recipe::Train& train);
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

class Updates {
 public:
  /// All but scale and size outlive it.
  Updates(Ranks& ranks, ExpertSchedule& experts, Health& health, Proofs& proofs, engine::Store& store, LossScale scale,
          StepSize size);

  /// The settings of a part of the run.
  void begin_part(const recipe::Recipe::Train& train, bool skips_not_finite);
  /// The pass with what the last steps decided of it: the loss scale, and the rate where updates run in the backward.
  const ExpertPass& armed(ExpertPass& pass);
  /// What becomes of the pass (decision.h), logged where it is skipped. Throws UserError (not_finite) where that ends the
  /// run.
  Decision decide(const ExpertPass& pass, const engine::StepRun& step);
  const std::vector<StepReport>& reports() const { return reports_; }  ///< of the pass that was decided last

  int stop() const { return stop_; }  ///< the signal by which the run is to end; 0: none
  /// Why a checkpoint is saved that the run's shape does not have; empty: none is.
  std::string take_save_asked() { return std::exchange(save_asked_, {}); }

  /// Takes the totals of updates whose step size is not known yet. All ranks together.
  void settle();
  void save(checkpoint::Manifest& manifest) const;
  void restore(const checkpoint::Manifest& manifest);

 private:
  Ranks& ranks_;
  ExpertSchedule& experts_;
  Health& health_;
  Proofs& proofs_;
  engine::Store& store_;
  LossScale loss_scale_;
  StepSize step_size_;
  double clip_norm_ = 0;
  bool skips_not_finite_ = false;
  std::vector<StepReport> reports_;
  int stop_ = 0;
  std::string save_asked_;
};

}  // namespace tessera::train
