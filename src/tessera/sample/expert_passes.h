#pragma once
// Sampler passes with the right denoiser: the only one, the expert of the timestep, or the expert that a gate chooses.
//
//   denoising.pass(expert_passes(job, router, engine, programs.sample, step));
#include "tessera/engine/engine.h"
#include "tessera/job/gate_router.h"
#include "tessera/sample/validation.h"

namespace tessera::sample {

/// `router`: of a job with a gate, else null. All arguments must outlive the result.
RunBranches expert_passes(const job::Job& job, const job::GateRouter* router, engine::Engine& engine,
                          const plan::ProgramPtr& program, int64_t step);

}  // namespace tessera::sample
