#pragma once
// Dynamic loss scaling for fp16 gradients, as in torch.amp.GradScaler: the loss is multiplied by `scale`; a step with
// an infinite or NaN gradient is skipped and the scale falls; after enough finite steps in a row it rises.
//
//   GradScaler scaler({.growth_interval = 2000});
//   ... gradient of loss * scaler.scale() ...
//   control.scale = clip / scaler.scale();
//   if (scaler.update(std::isfinite(norm))) optimiser step
//
// All ranks call update with the same argument (from the norm that they exchanged), so their scales stay equal.
#include <cstdint>

namespace tessera::optim {

struct GradScalerOptions {
  float init_scale = 65536;
  float growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< finite steps in a row after which the scale rises
};

class GradScaler {
 public:
  /// The state saved in checkpoints.
  struct State {
    float scale = 0;
    int64_t growth_tracker = 0;
    bool operator==(const State&) const = default;
  };

  /// Throws UserError (usage) for factors that do not grow or back off, naming the value.
  explicit GradScaler(GradScalerOptions options);

  float scale() const { return state_.scale; }
  int64_t growth_tracker() const { return state_.growth_tracker; }  ///< finite steps since the scale last changed
  /// Ends a step; `finite`: all gradients were finite. Returns whether the optimiser may step.
  bool update(bool finite);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  GradScalerOptions options_;
  State state_;
};

}  // namespace tessera::optim
