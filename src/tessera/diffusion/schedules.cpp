#include "tessera/diffusion/schedules.h"

#include <algorithm>
#include <cmath>

#include "tessera/diffusion/flow.h"

namespace tessera::diffusion {

namespace {

constexpr double kTrainSteps = 1000;

/// The first `count` values of numpy.linspace(first, last, points).
std::vector<double> linspace(double first, double last, int points, int count) {
  const double step = points > 1 ? (last - first) / (points - 1) : 0;
  std::vector<double> result;
  for (int i = 0; i < count; ++i) result.push_back(i * step + first);
  return result;
}

std::vector<double> shifted(std::vector<double> u, double shift) {
  for (double& value : u) value = shift_sigma(value, shift);
  return u;
}

SampleSchedule schedule_of(std::vector<double> sigmas, bool integer_timesteps) {
  SampleSchedule schedule;
  for (const double sigma : sigmas)
    schedule.timesteps.push_back(integer_timesteps ? std::trunc(kTrainSteps * sigma) : kTrainSteps * sigma);
  sigmas.push_back(0);
  schedule.sigmas = std::move(sigmas);
  return schedule;
}

}  // namespace

SampleSchedule plain_schedule(int steps, double shift) {
  return schedule_of(shifted(linspace(1, 0, steps + 1, steps), shift), false);
}

SampleSchedule diffusers_euler_schedule(int steps, double shift) {
  // Diffusers shifts its table in the constructor, and shifts values evenly spaced between the table's ends again.
  const double last = shift_sigma(1 / kTrainSteps, shift);
  return schedule_of(shifted(linspace(1, last, steps, steps), shift), false);
}

SampleSchedule diffusers_dynamic_schedule(int steps, double shift) {
  return schedule_of(shifted(linspace(1, 1 / kTrainSteps, steps, steps), shift), false);
}

SampleSchedule unipc_schedule(int steps, double shift) {
  const double first =
      static_cast<float>(1 - 1 / kTrainSteps);  // kept as fp32 in the official code, which decides truncations
  return schedule_of(shifted(linspace(first, 0, steps + 1, steps), shift), true);
}

SampleSchedule dpmpp_schedule(int steps, double shift) {
  return schedule_of(shifted(linspace(1, 0, steps + 1, steps), shift), true);
}

SampleSchedule diffusers_unipc_schedule(int steps, double shift) {
  auto sigmas = shifted(linspace(1, 1 / kTrainSteps, steps + 1, steps), shift);
  if (std::abs(sigmas[0] - 1) < 1e-6) sigmas[0] -= 1e-6;  // log(1 - sigma) must stay finite
  return schedule_of(std::move(sigmas), true);
}

SampleSchedule diffusers_dpmpp_schedule(int steps, double shift) {
  return schedule_of(shifted(linspace(1 - 1 / kTrainSteps, 0, steps + 1, steps), shift), true);
}

SampleSchedule scm_schedule(int steps, double) {
  constexpr double kFirst = 1.57080, kBetween = 1.3;
  std::vector<double> sigmas;
  for (const double angle : steps == 2 ? std::vector{kFirst, kBetween} : linspace(kFirst, 0, steps + 1, steps))
    sigmas.push_back(std::min(1.0, std::sin(angle) / (std::sin(angle) + std::cos(angle))));
  return schedule_of(std::move(sigmas), false);
}

}  // namespace tessera::diffusion
