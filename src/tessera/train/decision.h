#pragma once
// Whether a step is applied, skipped, or stops the run: every rank decides alike from the same losses and norm. And the
// scale that brings gradients into the range of fp16, where something is fp16: a step whose gradients overflow is skipped.
//
//   const Decision decision = decide(step.norm(), step.ranks(), rules, loss_scale);
//   engine.finish(std::move(step), decision.control);
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/net/unit_update.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"
#include "tessera/train/step_report.h"

namespace tessera::checkpoint {
struct Manifest;
}

namespace tessera::train {

class LossScale {
 public:
  LossScale() = default;  ///< none
  /// None where nothing of the plan is fp16.
  LossScale(const plan::Plan& plan, const recipe::Recipe::Train& train);

  std::optional<double> scale() const;  ///< of the step to come
  /// Ends a step with a finite loss. Why its gradients are not to be used, in words; empty when they are. Throws
  /// UserError (not_finite) when they overflow at every scale; `kept`: what there is to go back to then.
  std::string end_step(int64_t step, bool finite, const std::function<std::string()>& kept = {});

  void save(checkpoint::Manifest& manifest) const;
  void restore(const checkpoint::Manifest& manifest);  ///< what was saved without a scale begins with the recipe's

 private:
  std::optional<optim::GradScaler> scaler_;
};

/// What the recipe says of a step that the decision needs.
struct DecisionRules {
  int64_t step = 0;
  double rate = 0;                             ///< learning rate
  double clip_norm = 0;                        ///< 0: no clipping
  bool skip_not_finite = false;                ///< run.on_nan = skip; else such a step ends the run
  std::function<int64_t()> count_update;       ///< the number of the update, called when there is one
  std::function<std::string(int64_t)> source;  ///< the file of a data-set index, for messages
  std::function<std::string()> kept = {};      ///< what there is to go back to, for messages that end the run
  bool updated = false;                        ///< updates were made in the backward: nothing is left to control
};

struct Decision {
  std::vector<StepReport> ranks;
  diffusion::LossByTimestep by_timestep;
  double loss = 0, norm = 0;  ///< mean over the global batch; norm of all gradients, unscaled
  double rate = 0;
  std::optional<double> loss_scale;         ///< that the step had
  std::optional<double> d;                  ///< its step size, of optimisers that find it themselves
  std::optional<net::StepControl> control;  ///< of its updates; nothing: there are none
  std::string skipped;                      ///< why no update is made; empty: one is
  bool overflow = false;                    ///< that is the loss scale, which has been lowered: no fault
  int stop = 0;                             ///< the signal that asks some rank to stop; 0: none
  bool save = false;                        ///< a signal asks some rank for a checkpoint
  bool due = false;                         ///< checkpoint.every_minutes do
};

/// Throws UserError (not_finite) for a loss or norm that is not finite, naming the sample, unless such steps are
/// skipped or a smaller loss scale may mend it.
Decision decide(double norm, const std::vector<std::vector<double>>& ranks, const DecisionRules& rules,
                LossScale& loss_scale);

}  // namespace tessera::train
