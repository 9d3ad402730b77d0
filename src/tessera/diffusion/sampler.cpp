#include "tessera/diffusion/sampler.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
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

using at::Tensor;

namespace {

class Euler final : public Sampler {
 public:
  using Sampler::Sampler;
  Tensor step(int i, const Tensor& x, const Tensor& v) override { return x + v * (sigma(i + 1) - sigma(i)); }
};

/// Exponential integrators of the data prediction m = x - sigma v, in lambda = log((1 - sigma) / sigma).
class DataSolver : public Sampler {
 public:
  using Sampler::Sampler;

 protected:
  double alpha(int i) const { return 1 - sigma(i); }
  double lambda(int i) const { return std::log(alpha(i)) - std::log(sigma(i)); }  // -inf at sigma 1, inf at 0
  double h(int i) const { return lambda(i + 1) - lambda(i); }                     // of the step i -> i + 1
  double decay(int i) const { return std::expm1(-h(i)); }                         // e^-h - 1; -1 at the last step
  Tensor data(int i, const Tensor& x, const Tensor& v) const { return x - v * sigma(i); }
  /// The step i -> i + 1 for a constant data prediction m.
  Tensor first_order(int i, const Tensor& x, const Tensor& m) const {
    return x * (sigma(i + 1) / sigma(i)) - m * (alpha(i + 1) * decay(i));
  }
};

/// DPM-Solver++ (Lu et al. 2022) over several steps, of an order that rises with the data predictions there are; the last
/// step is of first order.
class DpmPlusPlus final : public DataSolver {
 public:
  DpmPlusPlus(SampleSchedule schedule, const DpmOptions& options)
      : DataSolver(std::move(schedule)), options_(options) {}

  Tensor step(int i, const Tensor& x, const Tensor& v) override {
    const Tensor m = data(i, x, v);
    Tensor next = first_order(i, x, m);
    const int order = this->order(i);
    if (order == 2)  // the ratio is 0 after a first sigma of 1, where h is infinite
      next = next + (m - last_) * (first_factor(i) * (h(i) / h(i - 1)));
    if (order == 3) next = next + third_order(i, m);
    before_ = last_;
    last_ = m;
    return next;
  }

 private:
  static constexpr int kFewSteps = 15;

  int order(int i) const {
    if (i + 1 == steps()) return 1;
    const bool lowered = i + 2 == steps() && options_.lowers_order && steps() < kFewSteps;
    return std::min({options_.order, i + 1, lowered ? 2 : 3});
  }
  /// Of the first difference of data predictions, for h = 1 between them.
  double first_factor(int i) const { return options_.heun ? integral(i) : -0.5 * alpha(i + 1) * decay(i); }
  double integral(int i) const { return alpha(i + 1) * (decay(i) / h(i) + 1); }
  Tensor third_order(int i, const Tensor& m) const {
    const double r0 = h(i - 1) / h(i), r1 = h(i - 2) / h(i);
    const Tensor near = (m - last_) / r0, far = (last_ - before_) / r1;
    const Tensor second = (near - far) / (r0 + r1), first = near + second * r0;
    return first * integral(i) - second * (alpha(i + 1) * ((decay(i) + h(i)) / (h(i) * h(i)) - 0.5));
  }

  const DpmOptions options_;
  Tensor before_, last_;  // data predictions two steps and one step ago
};

/// UniPC (Zhao et al. 2023), order 2, B(h) = e^h - 1: a corrector on arrival, then a predictor.
class UniPc final : public DataSolver {
 public:
  using DataSolver::DataSolver;
  Tensor step(int i, const Tensor& x, const Tensor& v) override {
    const Tensor m = data(i, x, v);  // from the uncorrected latent
    const Tensor corrected = i > 0 ? correct(i, m) : x;
    Tensor next = first_order(i, corrected, m);
    if (order(i) == 2) {
      const double r = (lambda(i - 1) - lambda(i)) / h(i);
      next = next - (last_ - m) * (0.5 * alpha(i + 1) * decay(i) / r);
    }
    before_ = last_;
    last_ = m;
    latent_ = corrected;
    return next;
  }

 private:
  int order(int i) const { return std::min({2, steps() - i, i + 1}); }

  /// Corrects the latent at i with the data prediction m there.
  Tensor correct(int i, const Tensor& m) const {
    const Tensor base = first_order(i - 1, latent_, last_);
    const double e = decay(i - 1), scale = alpha(i) * e;
    if (order(i - 1) == 1) return base - (m - last_) * (0.5 * scale);
    const double r = (lambda(i - 2) - lambda(i - 1)) / h(i - 1), hh = -h(i - 1);
    const double phi1 = e / hh - 1, b1 = phi1 / e;
    const double phi2 = phi1 / hh - 0.5, b2 = 2 * phi2 / e;
    const double rho1 = (b1 - b2) / (1 - r), rho2 = b1 - rho1;
    return base - ((before_ - last_) * (rho1 / r) + (m - last_) * rho2) * scale;
  }

  Tensor before_, last_;  // data predictions two steps and one step ago
  Tensor latent_;         // corrected latent of the previous step
};

/// Of models that predict the end from anywhere: consistency models in steps (LCM: Luo et al. 2023), students of DMD2, and
/// continuous-time consistency models (Lu and Song 2024), whose angles and our sigmas are one process: x at the
/// angle a, divided by sin a + cos a, is (1 - sigma) x0 + sigma noise.
class Consistency final : public Sampler {
 public:
  using Sampler::Sampler;
  Tensor step(int i, const Tensor& x, const Tensor& v) override {
    const Tensor end = x - v * sigma(i);
    if (sigma(i + 1) == 0) return end;
    return end * (1 - sigma(i + 1)) + noise(i) * sigma(i + 1);
  }
};

constexpr const char *kBySize = "euler_by_size", *kByArea = "euler_by_area";

struct Entry {
  std::string name;
  SampleSchedule (*schedule)(int steps, double shift);
  std::unique_ptr<Sampler> (*make)(SampleSchedule schedule);
};

template <class Solver>
std::unique_ptr<Sampler> make(SampleSchedule schedule) {
  return std::make_unique<Solver>(std::move(schedule));
}

template <int order, bool heun = false>
std::unique_ptr<Sampler> dpm(SampleSchedule schedule) {
  return make_dpm_solver(std::move(schedule), {.order = order, .heun = heun});
}

const std::vector<Entry>& samplers() {
  static const std::vector<Entry> table = {
      {"euler", plain_schedule, make<Euler>},
      {"euler_diffusers", diffusers_euler_schedule, make<Euler>},
      {"euler_dynamic", diffusers_dynamic_schedule, make<Euler>},
      {"unipc", unipc_schedule, make<UniPc>},
      {"unipc_diffusers", diffusers_unipc_schedule, make<UniPc>},
      {"dpmpp", dpmpp_schedule, dpm<2>},
      {"dpmpp_diffusers", diffusers_dpmpp_schedule, dpm<2>},
      {"dpmpp1_diffusers", diffusers_dpmpp_schedule, dpm<1>},
      {"dpmpp3_diffusers", diffusers_dpmpp_schedule, dpm<3>},
      {"dpmpp_heun_diffusers", diffusers_dpmpp_schedule, dpm<2, true>},
      {"scm", scm_schedule, make<Consistency>},
      {"lcm", plain_schedule, make<Consistency>},
      {kBySize, plain_schedule, make<Euler>},
      {kByArea, plain_schedule, make<Euler>},
  };
  return table;
}

}  // namespace

std::unique_ptr<Sampler> make_dpm_solver(SampleSchedule schedule, const DpmOptions& options) {
  check_internal(options.order >= 1 && options.order <= 3, "sampler", "DPM-Solver++ of another order");
  return std::make_unique<DpmPlusPlus>(std::move(schedule), options);
}

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const Entry& entry : samplers()) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Sampler> make_sampler(const std::string& name, int steps, double shift) {
  if (steps < 1 || !(shift > 0))
    throw UserError(Exit::usage, "sample", std::to_string(steps) + " steps with shift " + std::to_string(shift),
                    "both must be above 0");
  for (const Entry& entry : samplers())
    if (entry.name == name) return entry.make(entry.schedule(steps, shift));
  const auto near = nearest(name, sampler_names());
  throw UserError(Exit::usage, "sample.sampler",
                  "'" + name + "' is not known" + (near.empty() ? "" : "; did you mean " + near[0] + "?"));
}

bool shifts_by_size(const std::string& name) { return name == kBySize; }
bool shifts_by_area(const std::string& name) { return name == kByArea; }

Tensor guided(const Tensor& uncond, const Tensor& cond, double scale) { return uncond + (cond - uncond) * scale; }

namespace {

constexpr int kFirstAlternate = 10;  // steps before it all have guidance

bool rests(const TwoGuidances& scales, int step) {
  return scales.alternate && step >= kFirstAlternate && step % 2 == 1;
}

}  // namespace

double TwoGuidances::text_at(int step) const { return rests(*this, step) ? 1 : text; }

Tensor TwoGuidances::image_at(int step, int steps, int64_t frames) const {
  if (rests(*this, step)) return at::ones({frames}, at::kFloat);
  if (!image_by_frame || frames < 2) return at::full({frames}, image, at::kFloat);
  const double last = image + (1 - image) * step / steps;
  return at::linspace(1, last, frames, at::kFloat);
}

Tensor guided(const Tensor& neither, const Tensor& given, const Tensor& both, const TwoGuidances& scales, int step,
              int steps) {
  const Tensor image = scales.image_at(step, steps, neither.size(1)).to(neither.device()).view({1, -1, 1, 1});
  return neither + (given - neither) * image + (both - given) * scales.text_at(step);
}

}  // namespace tessera::diffusion
