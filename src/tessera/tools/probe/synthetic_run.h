#pragma once
// Trains a model on the same random batch in every step, to time steps: for `tessera bench` and `probe`.
//
//   SyntheticRun run(model, {16, 4, 16, 16}, spec, plan, comm, rank, {});
//   const double seconds = run.step();
#include <array>

#include "tessera/comm/comm.h"
#include "tessera/engine/engine.h"
#include "tessera/net/model.h"

namespace tessera::tools {

class SyntheticRun {
 public:
  /// Model and comm outlive it. `latent`: [C, f, h, w] of every sample. All ranks make it together.
  SyntheticRun(const net::Denoiser& model, const std::array<int64_t, 4>& latent, const plan::ModelSpec& spec,
               const plan::Plan& plan, comm::Comm& comm, int rank, engine::EngineOptions options);

  /// Runs the next step, which all ranks begin together. Returns the seconds of this one.
  double step();

  const plan::Schedule& schedule() const { return program_->schedule; }
  engine::Engine& engine() { return engine_; }

 private:
  comm::Comm& comm_;
  const plan::ProgramPtr program_;
  engine::Engine engine_;
  const std::unique_ptr<net::Objective> objective_;
  int64_t steps_ = 0;
};

}  // namespace tessera::tools
