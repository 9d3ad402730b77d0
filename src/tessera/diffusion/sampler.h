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

#include "tessera/diffusion/schedules.h"
#include "tessera/torch_headers.h"

namespace tessera::diffusion {

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

  /// Makes standard normal noise of the latent's shape for step i. Samplers that add noise ("scm") need it.
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
/// "unipc" and "dpmpp" (the official programs: integer timesteps), "unipc_diffusers", "dpmpp_diffusers", "scm" (of
/// models that predict the end from anywhere: each step goes there and adds fresh noise).
/// Throws UserError (usage) naming the nearest known name.
std::unique_ptr<Sampler> make_sampler(const std::string& name, int steps, double shift);
std::vector<std::string> sampler_names();

/// Classifier-free guidance: uncond + scale * (cond - uncond).
at::Tensor guided(const at::Tensor& uncond, const at::Tensor& cond, double scale);

}  // namespace tessera::diffusion
