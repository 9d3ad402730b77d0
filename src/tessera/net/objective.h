#pragma once
// The loss of a training step: makes the model's inputs and compares its predictions with the targets.
//
//   struct Squares final : net::Objective { ... };
//   engine.run({.program = programs.train}, objective, report);
#include <optional>
#include <span>
#include <string>

#include "tessera/net/model.h"

namespace tessera::net {

class Objective {
 public:
  virtual ~Objective() = default;
  /// Inputs of this rank's micro-batch with all their tokens: the engine takes the tokens of this rank. Called only for
  /// micro-batches with samples.
  virtual Batch batch(int micro) = 0;
  /// Gradient of the loss with respect to the prediction [T, C] of this rank's tokens (batch.tokens), where that lies.
  virtual Tensor gradient(const Tensor& prediction, const Batch& batch, int micro) = 0;
  /// The tensors with which gradient() of the micro-batch compares: the engine replaces each by a copy of its own where
  /// ranks share tokens, and on a device.
  virtual std::vector<Tensor*> compared(int) { return {}; }
  /// Numbers of the step that gradient() has left where the predictions are, [n] of fp64; undefined: none.
  virtual Tensor numbers() { return {}; }
  /// All that gradient() of the micro-batch would take from the host and give to the device, as text: where it was the same
  /// before, the device can repeat what it was given (engine/graphs.h). Called after batch(); nullopt: it never can.
  virtual std::optional<std::string> given(int) { return std::nullopt; }
  /// In place of gradient(), where the device repeats it.
  virtual void repeat(const Batch&, int) {}
  /// Gets these numbers. Called once a step, at `norm`, where alone the host waits for the device.
  virtual void read(std::span<const double>) {}
};

}  // namespace tessera::net
