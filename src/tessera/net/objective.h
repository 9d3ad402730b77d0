#pragma once
// What a training step learns: it gives the model's inputs, and holds the predictions against what they should be.
//
//   struct Squares final : net::Objective { ... };
//   engine.run({.program = programs.train}, objective, report);
#include "tessera/net/model.h"

namespace tessera::net {

class Objective {
 public:
  virtual ~Objective() = default;
  /// Inputs of this rank's micro-batch (asked for only when it has samples), whole: the engine cuts out the tokens that
  /// are this rank's.
  virtual Batch batch(int micro) = 0;
  /// Gradient of the loss with respect to the prediction [T, C] of the tokens here (batch.tokens).
  virtual Tensor gradient(const Tensor& prediction, const Batch& batch, int micro) = 0;
  /// Brings losses, and whatever else was computed on the device, to the host. Called once a step, at `norm`: the one
  /// place where the host waits for the device.
  virtual void read() {}
};

}  // namespace tessera::net
