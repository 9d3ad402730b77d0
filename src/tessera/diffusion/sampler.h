#pragma once
// From noise to a latent: sigma schedules and solvers of the velocity field, as in the public programs.
//
//   auto sampler = make_sampler("euler", 50, 5.0);
//   for (int i = 0; i < sampler->steps(); ++i) {
//     Tensor v = guided(uncond(x, sampler->timesteps()[i]), cond(x, sampler->timesteps()[i]), 5.0);
//     x = sampler->step(i, x, v);
//   }
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/torch_headers.h"

namespace tessera::diffusion {

// The sigma schedules of the public samplers, which differ in end points, number of shifts and truncation of timesteps
// to integers.

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

class Sampler {
 public:
  explicit Sampler(SampleSchedule schedule) : schedule_(std::move(schedule)) {}
  virtual ~Sampler() = default;

  int steps() const { return static_cast<int>(schedule_.timesteps.size()); }
  const std::vector<double>& timesteps() const { return schedule_.timesteps; }
  const std::vector<double>& sigmas() const { return schedule_.sigmas; }
  /// The latent after step i, from the latent before it and its velocity. Call in order 0, 1, ..; step 0 resets the
  /// state.
  virtual at::Tensor step(int i, const at::Tensor& x, const at::Tensor& v) = 0;

  /// Makes standard normal noise of the latent's shape for step i. Samplers that add noise ("scm", "lcm") need it.
  using Noise = std::function<at::Tensor(int i)>;
  void use_noise(Noise noise) { noise_ = std::move(noise); }

 protected:
  at::Tensor noise(int i) const { return noise_(i); }
  double sigma(int i) const { return schedule_.sigmas[i]; }

 private:
  const SampleSchedule schedule_;
  Noise noise_;
};

/// "euler" (even u from 1, as in DiffSynth), "euler_diffusers" (FlowMatchEuler, which shifts its end points twice),
/// "euler_dynamic" (the same of dynamic shifts: once), "unipc" and "dpmpp" (the official programs: integer timesteps),
/// "unipc_diffusers", "dpmpp_diffusers" and its other orders "dpmpp1_diffusers", "dpmpp3_diffusers" and
/// "dpmpp_heun_diffusers", "scm" and "lcm" (of models that predict the end from anywhere: each step goes there and adds fresh
/// noise; by angles, and by euler's even steps),
/// "euler_by_size" and "euler_by_area". Throws UserError (usage) naming the nearest known name.
std::unique_ptr<Sampler> make_sampler(const std::string& name, int steps, double shift);

/// How DPM-Solver++ steps, as DPMSolverMultistepScheduler has it.
struct DpmOptions {
  int order = 2;             ///< 1 to 3
  bool heun = false;         ///< the second order's form; else midpoint
  bool lowers_order = true;  ///< of few steps the last but one is of second order; the last is of first in any case
};
std::unique_ptr<Sampler> make_dpm_solver(SampleSchedule schedule, const DpmOptions& options);
std::vector<std::string> sampler_names();
/// Of "euler_by_size" and of "euler_by_area", whose shifts are size_shift() and area_shift() of the video (flow.h): the
/// caller gives them.
bool shifts_by_size(const std::string& name);
bool shifts_by_area(const std::string& name);

/// Classifier-free guidance: uncond + scale * (cond - uncond).
at::Tensor guided(const at::Tensor& uncond, const at::Tensor& cond, double scale);

/// Guidance towards a text and towards given frames (Open-Sora 2.0), at a step of a sampler.
struct TwoGuidances {
  double text = 1, image = 1;
  bool alternate = false;  ///< from step 10 on the odd steps have none
  /// That of frame f goes evenly from 1 at the first frame to that of the step at the last, which goes evenly from
  /// `image` at the first step to 1 behind the last.
  bool image_by_frame = false;
  double text_at(int step) const;
  /// [F] for latents [C, F, H, W]. A sampler of `steps` steps.
  at::Tensor image_at(int step, int steps, int64_t frames) const;
};
/// neither + image (given - neither) + text (both - given): velocities with neither, the given frames alone, and both.
at::Tensor guided(const at::Tensor& neither, const at::Tensor& given, const at::Tensor& both,
                  const TwoGuidances& scales, int step, int steps);

}  // namespace tessera::diffusion
