#pragma once
// The seam between engine and optimiser: the engine's `update u` instruction calls it with the shard it owns.
#include "tessera/ops/tensor.h"

namespace tessera::net {

/// What all ranks agreed on before the updates of a step.
struct StepControl {
  int64_t step = 0;  ///< optimiser step, from 1
  double lr = 0;
  double scale = 1;  ///< multiplies every gradient (clip coefficient)
};

/// One optimiser over flat shards. Shards are 1-D fp32; padding elements have zero gradient.
class UnitUpdate {
 public:
  virtual ~UnitUpdate() = default;
  /// Makes the states of a unit's shard of `count` elements (zeros).
  virtual void allocate(int unit, int64_t count) = 0;
  virtual void update(int unit, at::Tensor& param, const at::Tensor& grad, const StepControl& control) = 0;
  /// Checkpoint kind and shard of every state of the unit: {"exp_avg", ...}, {"exp_avg_sq", ...}.
  virtual std::vector<std::pair<std::string, at::Tensor>> states(int unit) = 0;
};

}  // namespace tessera::net
