// Kind "longsana_dmd": the gradient that matches a generator's clips with a frozen score's, and the step of the score that
// follows the generator.
#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/diffusion/distillation.h"
#include "tessera/models/common/golden_case.h"
#include "tessera/tools/verify/step_network.h"

namespace tessera::tools {

namespace {

using at::Tensor;

constexpr double kTrainedSteps = 1000;

/// How a case draws and guides, by the names of its config.
struct MatchingRule {
  double guidance = 0, shift = 1, least = 0, most = kTrainedSteps;
  std::vector<double> sigmas;

  /// The timestep of a drawn whole number.
  double timestep(double n) const {
    const double part = n / kTrainedSteps, t = shift > 1 ? kTrainedSteps * shift * part / (1 + (shift - 1) * part) : n;
    return std::clamp(t, least, most);
  }
};

MatchingRule matching_rule(const Settings& settings) {
  MatchingRule rule;
  rule.guidance = settings.at("guidance_scale");
  rule.shift = settings.at("timestep_shift");
  rule.sigmas = diffusion::shifted_sigmas(settings.at("model_timestep_shift"));
  const double steps = settings.at("num_train_timestep");
  rule.least = 0.02 * steps, rule.most = 0.98 * steps;
  const auto kind = settings.value("denoising_loss_type", std::string("flow"));
  check_input(kind == "flow", "verify", "denoising_loss_type \"" + kind + "\" is not known to this build");
  settings.read("min_score_timestep");  // of draws, which the case has
  return rule;
}

/// One run of a case: its draws, and x_t.
struct MatchingRun {
  double t = 0, sigma = 0;
  Tensor x, noise, noisy;  ///< [C, F, H, W]

  MatchingRun(const CaseFile& file, const std::string& in, const MatchingRule& rule)
      : t(rule.timestep(file.tensor(in + "n").to(at::kDouble).item<double>())),
        sigma(diffusion::nearest_sigma(rule.sigmas, t)),
        x(file.tensor("in.x")[0]),
        noise(file.tensor(in + "noise")[0]),
        noisy((1 - sigma) * x + sigma * noise) {
    check_input(file.tensor("in.x").size(0) == 1, "verify", file.label() + ": in.x has more than one clip");
  }

  net::Sample sample(const Tensor& caption) const {
    net::Sample sample;
    sample.x = noisy;
    sample.t = std::trunc(t);
    sample.context = caption;
    return sample;
  }
  Tensor clean(const Tensor& velocity) const { return noisy - sigma * velocity; }
};

Tensor caption_of(const CaseFile& file, const std::string& text) {
  return file.tensor("in." + text)[0].index_select(0, at::nonzero(file.tensor("in." + text + "_mask")[0]).flatten());
}

/// Frames that count, as values of a clip; undefined where all do.
Tensor mask_of(const CaseFile& file, const std::string& run, const Tensor& x) {
  if (run != "masked") return {};
  return file.tensor("in.mask").to(at::kFloat).view({1, -1, 1, 1}).expand(x.sizes());
}

void compare_drawn(const MatchingRun& run, const CaseContext& context, CaseFile& file, const std::string& out) {
  file.compare(out + "t", at::scalar_tensor(run.t, at::kFloat), context.bound("out"));
  file.compare(out + "sigma", at::scalar_tensor(run.sigma, at::kFloat), context.bound("out"));
}

}  // namespace

CaseResults verify_matching(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const MatchingRule rule = matching_rule(context.config.at("_dmd"));
  const StepNetwork fake(context, StepNetwork::described(context), "fake.safetensors"),
      real(context, StepNetwork::described(context), "real.safetensors");
  const Tensor text = caption_of(file, "text"), negative = caption_of(file, "negative");
  const auto bound = context.bound("out");
  const std::string last = ".n";
  for (const std::string& name : file.names("in.")) {
    if (!name.ends_with(last) || name == "in.critic.n") continue;
    const std::string run_name = name.substr(3, name.size() - 3 - last.size()), out = "out." + run_name + ".";
    const MatchingRun run(file, "in." + run_name + ".", rule);
    const auto said = real.forward({run.sample(text), run.sample(negative)});
    const Tensor wanted = run.clean(said[0].prediction), without = run.clean(said[1].prediction),
                 guided = wanted + rule.guidance * (wanted - without),
                 own = run.clean(fake.forward({run.sample(text)})[0].prediction);
    const diffusion::MatchingLoss loss = diffusion::matching_loss(run.x, own, guided, mask_of(file, run_name, run.x));
    compare_drawn(run, context, file, out);
    file.compare(out + "x0_fake", own.unsqueeze(0), bound);
    file.compare(out + "x0_real", guided.unsqueeze(0), bound);
    file.compare(out + "d", loss.d.to(at::kFloat).unsqueeze(0), bound);
    file.compare(out + "loss", at::scalar_tensor(loss.loss, at::kFloat), bound);
    file.compare("grad_in." + run_name + ".x", loss.at_x.unsqueeze(0), context.bound("grad_in"));
  }
  if (file.has("in.critic.n")) {
    const MatchingRun run(file, "in.critic.", rule);
    const Tensor velocity = fake.forward({run.sample(text)})[0].prediction, off = velocity - (run.noise - run.x);
    compare_drawn(run, context, file, "out.critic.");
    file.compare("out.critic.x0_fake", run.clean(velocity).unsqueeze(0), bound);
    file.compare("out.critic.loss", off.to(at::kDouble).square().mean().to(at::kFloat), bound);
    const auto gradients =
        fake.backward({run.sample(text)}, {{off * (2.0 / static_cast<double>(off.numel()))}}).parameters;
    for (const auto& [parameter, value] :
         models::stored_together({gradients.begin(), gradients.end()},
                                 [&](const std::string& name) { return fake.model().foreign_name(name, "diffusers"); }))
      file.compare("grad.critic." + parameter, value, context.bound("grad"));
  }
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
