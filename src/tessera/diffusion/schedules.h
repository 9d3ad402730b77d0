#pragma once
// The sigma schedules of the public samplers, which differ in end points, number of shifts and truncation of timesteps
// to integers.
#include <vector>

namespace tessera::diffusion {

/// N timesteps as the model receives them, and N + 1 sigmas as the solver uses them, the last one 0.
struct SampleSchedule {
  std::vector<double> timesteps, sigmas;
};

SampleSchedule plain_schedule(int steps, double shift);  ///< u = linspace(1, 0, N + 1)[:-1]
SampleSchedule diffusers_euler_schedule(int steps, double shift);
/// Of dynamic shifts, whose table is not shifted before: a shift of e^mu, or of mu where theirs is linear.
SampleSchedule diffusers_dynamic_schedule(int steps, double shift);
SampleSchedule unipc_schedule(int steps, double shift);  ///< starts at 0.999 before the shift
SampleSchedule dpmpp_schedule(int steps, double shift);  ///< starts at 1
SampleSchedule diffusers_unipc_schedule(int steps, double shift);
SampleSchedule diffusers_dpmpp_schedule(int steps, double shift);  ///< from 0.999, in fp64
/// Of consistency models in trigonometric time (SCM): angles from pi/2 to 0, at two steps 1.3 between them, as sigmas
/// sin / (sin + cos). There is no shift.
SampleSchedule scm_schedule(int steps, double shift);

}  // namespace tessera::diffusion
