// Samplers of diffusers' schedulers, and the table that its trainers draw from: kinds that a family's row names
// (Family::sampling_cases). A mesh means nothing to them.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/diffusion/flow.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/tools/verify/case.h"
#include "tessera/tools/verify/optimiser_case.h"

namespace tessera::tools {

namespace {

using at::Tensor;

/// The case's rules are prose.
double of_list(double largest) { return 1e-6 * largest; }
constexpr double kOfSample = 1e-4;

Tensor list(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

/// `whole`: its timesteps are truncated.
void check_path(CaseFile& file, const std::string& run, diffusion::Sampler& sampler, bool whole) {
  const std::string out = "out." + run + ".";
  file.compare(out + "timesteps", list(sampler.timesteps()), [&](double most) { return whole ? 0.0 : of_list(most); });
  file.compare(out + "sigmas", list(sampler.sigmas()), of_list);
  std::vector<Tensor> after = {file.tensor("in.x")};
  for (int i = 0; i < sampler.steps(); ++i) {
    const Tensor& x = after.back();
    after.push_back(sampler.step(i, x, 0.3 * x.sin() + 0.1 * sampler.timesteps()[static_cast<size_t>(i)] / 1000));
  }
  after.erase(after.begin());
  file.compare(out + "x", at::stack(after), kOfSample);
}

diffusion::DpmOptions dpm_options(const RunSettings& run) {
  diffusion::DpmOptions options;
  options.order = run.value("solver_order", 2);
  check_input(options.order >= 1 && options.order <= 3, "verify",
              "solver_order is " + std::to_string(options.order) + ", this build has 1 to 3");
  const std::string type = run.value("solver_type", std::string("midpoint"));
  check_input(type == "midpoint" || type == "heun", "verify",
              "solver_type is " + printable(type) + ", this build has midpoint and heun");
  options.heun = type == "heun";
  options.lowers_order = run.value("lower_order_final", true);
  run.expect("algorithm_type", "dpmsolver++");
  run.expect("final_sigmas_type", "zero");
  run.value("euler_at_final", false);  // the last step is of first order in any case
  return options;
}

void check_solvers(CaseFile& file, const CaseContext& context, int steps, double shift) {
  std::vector<std::string> names = {"dpm2"};  // of a case that lists none
  if (context.config.contains("runs")) {
    names.clear();
    for (const auto& [name, run] : context.config.at("runs").items()) names.push_back(name);
  }
  for (const std::string& name : names)
    check_run_of(file, context.config, name, [&](const RunSettings& run) {
      const diffusion::DpmOptions options = dpm_options(run);
      const auto solver = diffusion::make_dpm_solver(diffusion::diffusers_dpmpp_schedule(steps, shift), options);
      check_path(file, name, *solver, true);
    });
}

/// Euler steps of a shift, and of shifts that follow from a size.
void check_euler(CaseFile& file, const CaseContext& context, int steps, double shift) {
  const auto check = [&](const std::string& run, const char* name, double by) {
    check_path(file, run, *diffusion::make_sampler(name, steps, by), false);
  };
  check("euler", "euler_diffusers", shift);
  const Settings& config = context.config;
  if (config.contains("mu_exponential"))
    check("euler_dynamic", "euler_dynamic", std::exp(config.at("mu_exponential").get<double>()));
  if (config.contains("mu_linear")) check("euler_dynamic_linear", "euler_dynamic", config.at("mu_linear"));
}

/// The reference steps in angles: x there is x here times sin + cos and the deviation of its latents, and its model
/// gives another velocity, of which the end of the path is the same.
void check_consistency(CaseFile& file, const CaseContext& context) {
  const int steps = context.config.at("scm_steps").get<int>();
  const double deviation = context.config.at("sigma_data").get<double>();
  for (const auto& [key, only] : {std::pair("scm_max_timesteps", 1.5708), {"scm_intermediate_timesteps", 1.3}})
    check_input(context.config.value(key, only) == only, "verify",
                context.name + ": config.json: " + key + ", this build has " + std::to_string(only));
  const Tensor noise = file.tensor("in.scm.noise");
  const auto sampler = diffusion::make_sampler("scm", steps, context.config.at("flow_shift").get<double>());
  sampler->use_noise([&](int i) { return noise[i]; });
  std::vector<double> angles;
  for (const double sigma : sampler->sigmas()) angles.push_back(std::atan2(sigma, 1 - sigma));
  // the reference begins at 1.5708, which is not quite half of pi
  file.compare("out.scm.timesteps", list(angles), [](double) { return 4e-6; });
  Tensor theirs = file.tensor("in.scm.x");
  std::vector<Tensor> after;
  for (size_t i = 0; i < static_cast<size_t>(steps); ++i) {
    const double angle = angles[i], next = angles[i + 1];
    const double scale = (std::sin(angle) + std::cos(angle)) * deviation;
    const Tensor velocity = 0.3 * theirs.sin() + 0.1 * angle;
    const Tensor end = (theirs * std::cos(angle) - velocity * std::sin(angle)) / deviation, x = theirs / scale;
    const Tensor moved = sampler->step(static_cast<int>(i), x, (x - end) / sampler->sigmas()[i]);
    after.push_back(theirs = moved * (std::sin(next) + std::cos(next)) * deviation);
  }
  file.compare("out.scm.x", at::stack(after), kOfSample);
  file.compare("out.scm.denoised", theirs, kOfSample);
}

void check_drawn(CaseFile& file, const CaseContext& context) {
  diffusion::Options options;
  options.timesteps = diffusion::Timesteps::diffusers;
  options.shift = context.config.at("flow_shift").get<double>();
  constexpr int kEntries = 1000;
  std::vector<double> sigmas, timesteps;
  for (int i = 0; i < kEntries; ++i) {
    const diffusion::TrainingDraw entry = draw_of(options, (i + 0.5) / kEntries);
    sigmas.push_back(entry.sigma), timesteps.push_back(entry.t);
  }
  file.compare("out.train.table_sigmas", list(sigmas), of_list);
  file.compare("out.train.table_timesteps", list(timesteps), of_list);
  const Tensor normal = file.tensor("in.train.normal"), latent = file.tensor("in.train.latent"),
               noise = file.tensor("in.train.noise");
  std::vector<double> u, sigma, t;
  std::vector<int64_t> index;
  std::vector<Tensor> noisy, targets;
  for (int64_t i = 0; i < normal.numel(); ++i) {
    u.push_back(1 / (1 + std::exp(-normal[i].item<double>())));
    const diffusion::TrainingDraw drawn = draw_of(options, u.back());
    sigma.push_back(drawn.sigma), t.push_back(drawn.t);
    index.push_back(std::ranges::find(sigmas, drawn.sigma) - sigmas.begin());
    noisy.push_back(diffusion::add_noise(latent[i], noise[i], drawn.sigma));
    targets.push_back(diffusion::velocity(latent[i], noise[i]));
  }
  file.compare("out.train.u", list(u), of_list);
  file.compare("out.train.index", at::tensor(index, at::kLong), 0.0);
  file.compare("out.train.sigma", list(sigma), of_list);
  file.compare("out.train.timestep", list(t), of_list);
  file.compare("out.train.noisy", at::stack(noisy), kOfSample);
  file.compare("out.train.target", at::stack(targets), kOfSample);
}

}  // namespace

CaseResults verify_schedulers(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const int steps = context.config.at("steps").get<int>();
  const double shift = context.config.at("flow_shift").get<double>();
  check_solvers(file, context, steps, shift);
  check_euler(file, context, steps, shift);
  check_consistency(file, context);
  check_drawn(file, context);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
