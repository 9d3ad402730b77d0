#pragma once
// The sigma grids of the public samplers (specs: which end points, shifted how often, timesteps cut to integers or
// not).
#include <vector>

namespace tessera::diffusion {

/// Timesteps as the model gets them, N of them, and sigmas as the solver uses them, N + 1 with a final 0.
struct SampleSchedule {
  std::vector<double> timesteps, sigmas;
};

SampleSchedule plain_schedule(int steps, double shift);  ///< u = linspace(1, 0, N + 1)[:-1]
SampleSchedule diffusers_euler_schedule(int steps, double shift);
SampleSchedule unipc_schedule(int steps, double shift);  ///< starts at 0.999 before the shift
SampleSchedule dpmpp_schedule(int steps, double shift);  ///< starts at 1
SampleSchedule diffusers_unipc_schedule(int steps, double shift);

}  // namespace tessera::diffusion
