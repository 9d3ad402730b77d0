// Kind "flow": sampler schedules and trajectories, DiffSynth's training table. The mesh means nothing here.
#include <regex>

#include "tessera/base/check.h"
#include "tessera/diffusion/flow.h"
#include "tessera/diffusion/sampler.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

/// The case's names for samplers -> ours.
const std::map<std::string, std::string> kSamplers = {{"euler", "euler_diffusers"},
                                                      {"diffsynth", "euler"},
                                                      {"unipc", "unipc"},
                                                      {"dpmpp", "dpmpp"},
                                                      {"diffusers_unipc", "unipc_diffusers"}};

at::Tensor to_tensor(const std::vector<double>& values, at::ScalarType type) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(type);
}

/// The recorded model: v(x, t) = 0.3 sin x + 0.1 t / 1000.
at::Tensor velocity(const at::Tensor& x, double t) { return at::sin(x).mul(0.3).add(0.1 * t / 1000); }

void check_sampler(CaseFile& file, const CaseContext& context, const std::string& prefix, const std::string& name,
                   double shift, int steps) {
  const auto sampler = diffusion::make_sampler(kSamplers.at(name), steps, shift);
  // Integer timesteps must be met exactly, float ones to 1e-3 (the case's rule).
  if (file.has(prefix + "timesteps")) {
    const bool whole = file.tensor(prefix + "timesteps").scalar_type() == at::kLong;
    file.compare(prefix + "timesteps", to_tensor(sampler->timesteps(), whole ? at::kLong : at::kFloat),
                 whole ? context.tolerance("timesteps") : 1e-3);
  } else {
    file.fail(prefix + "timesteps");
  }
  std::vector<double> sigmas = sampler->sigmas();
  if (file.has(prefix + "sigmas"))
    sigmas.resize(std::min<size_t>(sigmas.size(), static_cast<size_t>(file.tensor(prefix + "sigmas").numel())));
  file.compare(prefix + "sigmas", to_tensor(sigmas, at::kFloat), context.tolerance("sigmas"));
  at::Tensor x = file.tensor("in.x");
  std::vector<at::Tensor> trajectory = {x};
  for (int i = 0; i < steps; ++i) trajectory.push_back(x = sampler->step(i, x, velocity(x, sampler->timesteps()[i])));
  file.compare(prefix + "trajectory", at::stack(trajectory),
               steps > 20 ? 5 * context.tolerance("out") : context.tolerance("out"));
}

void check_training(CaseFile& file, const CaseContext& context, const std::string& prefix, double shift, int steps) {
  const diffusion::TrainingTable table = diffusion::training_table(shift, steps);
  file.compare(prefix + "timesteps", to_tensor(table.timesteps, at::kFloat), 1e-3);
  file.compare(prefix + "sigmas", to_tensor(table.sigmas, at::kFloat), context.tolerance("sigmas"));
  file.compare(prefix + "weights", to_tensor(table.weights, at::kFloat), 1e-5);
  const at::Tensor x = file.tensor("in.x"), noise = file.tensor("in.noise"), ids = file.tensor(prefix + "ids");
  std::vector<at::Tensor> noisy;
  std::vector<double> weights;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const auto id = static_cast<size_t>(ids[i].item<int64_t>());
    check_input(id < table.sigmas.size(), "verify", prefix + "ids: " + std::to_string(id) + " is outside the table");
    noisy.push_back(diffusion::add_noise(x, noise, table.sigmas[id]));
    weights.push_back(table.weights[id]);
  }
  file.compare(prefix + "noisy", at::stack(noisy), context.tolerance("out"));
  file.compare(prefix + "weight_at_ids", to_tensor(weights, at::kFloat), 1e-5);
  file.leave_out(prefix + "ids", "they are drawn by the reference, and given to the comparison");
  file.compare(prefix + "target", diffusion::velocity(x, noise), context.tolerance("out"));
}

}  // namespace

CaseResults verify_flow(const CaseContext& context) {
  check_input(context.config.value("num_train_timesteps", 1000) == 1000, "verify",
              context.name + ": config.json: num_train_timesteps, this build has 1000");
  // the names of the expected values have these
  for (const char* key : {"official_shifts", "diffusers_shifts", "steps", "train"}) context.config.read(key);
  CaseFile file(context.name, context.case_files().front());
  const std::regex pattern(R"(out\.(\w+)\.shift([0-9.]+)\.steps(\d+)\.(\w+))");
  std::vector<std::string> seen;
  for (const auto& key : file.names("out.")) {
    std::smatch match;
    check_input(std::regex_match(key, match, pattern), "verify",
                context.name + ": '" + key + "' is not a name of kind flow");
    const std::string prefix = key.substr(0, key.rfind('.') + 1), name = match[1];
    if (std::find(seen.begin(), seen.end(), prefix) != seen.end()) continue;
    seen.push_back(prefix);
    const double shift = std::stod(match[2]);
    const int steps = std::stoi(match[3]);
    if (name == "diffsynth_train") {
      check_training(file, context, prefix, shift, steps);
      continue;
    }
    check_input(kSamplers.count(name) > 0, "verify", context.name + ": sampler '" + name + "' is not known");
    check_sampler(file, context, prefix, name, shift, steps);
  }
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
