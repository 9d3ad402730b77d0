// Kinds "lion", "adafactor", "came", "prodigy" and "ema": trajectories of parameters and states, on any mesh.
#include "tessera/base/check.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/prodigy.h"
#include "tessera/tools/verify/case.h"
#include "tessera/tools/verify/optimiser_case.h"

namespace tessera::tools {

namespace {

/// The optimiser of a run with its rate.
struct RunOf {
  std::unique_ptr<const net::UnitUpdate> optimiser;
  double lr = 0;
};

RunOf lion(const Json& run) {
  optim::LionOptions options;
  options.betas = run.at("betas");
  options.weight_decay = run.at("weight_decay");
  return {std::make_unique<const optim::Lion>(options), run.at("lr")};
}

RunOf adafactor(const Json& run) {
  constexpr double kMostRelative = 1e-2;
  optim::AdafactorOptions options;
  options.eps = run.at("eps");
  options.clip_threshold = run.at("clip_threshold");
  options.decay_rate = run.at("decay_rate");
  options.weight_decay = run.at("weight_decay");
  options.relative_step = run.at("relative_step");
  check_input(run.at("beta1").is_null() && !run.at("warmup_init").get<bool>() &&
                  run.at("scale_parameter") == run.at("relative_step"),
              "verify", "config.json: this build has Adafactor without beta1 and warmup_init",
              "scale_parameter goes with relative_step");
  return {std::make_unique<const optim::Adafactor>(options),
          options.relative_step ? kMostRelative : run.at("lr").get<double>()};
}

RunOf came(const Json& config, const std::string& name) {
  optim::CameOptions options;
  options.betas = config.at("betas");
  options.eps = config.at("eps");
  options.clip_threshold = config.at("clip_threshold");
  options.weight_decay = config.at("wd");
  if (name == "came_pytorch") options.factoring = plan::Factoring::last_two;
  return {std::make_unique<const optim::Came>(options), config.at("lr")};
}

optim::ProdigyOptions prodigy(const Json& run) {
  optim::ProdigyOptions options;
  options.d0 = run.at("d0");
  options.d_coef = run.value("d_coef", options.d_coef);
  options.weight_decay = run.value("weight_decay", options.weight_decay);
  options.bias_correction = run.value("use_bias_correction", false);
  options.safeguard_warmup = run.value("safeguard_warmup", false);
  return options;
}

/// Parameters after `shots`, and states after the last step. `sizes`: root mean squares before it.
void compare_run(CaseFile& file, OptimiserCase& state, const std::string& out,
                 std::map<std::string, std::vector<at::Tensor>>& shots, std::map<std::string, at::Tensor>& sizes) {
  for (const auto& param : state.names()) {
    const std::string key = out + "param." + param;
    double move = 0;
    if (file.has(key)) move = (file.tensor(key)[4] - file.tensor("in.param." + param)).abs().max().item<double>();
    file.compare(key, at::stack(shots[param]), [move](double largest) { return 2e-4 * move + 4e-6 * largest; });
    for (const std::string& stored : file.names(out + "state.")) {
      if (!stored.ends_with("." + param)) continue;
      const size_t begin = out.size() + 6;
      const std::string what = stored.substr(begin, stored.size() - begin - param.size() - 1);
      at::Tensor found = what == "RMS" ? sizes[param] : state.state(param, what);
      if (!found.defined()) {
        file.fail(stored);
        continue;
      }
      const at::Tensor expected = file.tensor(stored);
      if (found.numel() == expected.numel()) found = found.view(expected.sizes());
      file.compare(stored, found, [](double largest) { return 1e-4 * largest; });
    }
  }
}

/// In a closed loop: the gradient is h (p - c) + noise, so that the distance to c is what Prodigy has to find.
void check_prodigy(const CaseContext& context, CaseFile& file, const std::string& name) {
  const Json& run = context.config.at("runs").at(name);
  const optim::ProdigyOptions options = prodigy(run);
  const optim::Prodigy optimiser(options);
  optim::ProdigySize size(options);
  OptimiserCase state(context, file, optimiser, options.format);
  std::map<std::string, std::vector<at::Tensor>> shots;
  std::map<std::string, at::Tensor> sizes;
  std::vector<double> found, estimates;
  const auto gradient = [&](const std::string& param, const at::Tensor& p, const at::Tensor& noise, int64_t begin) {
    const auto part = [&](const char* what) {
      return file.tensor(what + param).view({-1}).narrow(0, begin, p.numel());
    };
    return part("in.h.") * (p - part("in.c.")) + noise;
  };
  const int64_t steps = context.config.at("steps"), every = steps / 5;
  for (int64_t step = 1; step <= steps; ++step) {
    const net::StepControl control{step, run.at("lr"), 1.0, size.d()};
    state.step(optimiser, control, gradient);
    size.take(state.totals(), control);
    found.push_back(size.d()), estimates.push_back(size.estimate());
    if (step % every == 0)
      for (const auto& param : state.names()) shots[param].push_back(state.param(param));
  }
  const std::string out = "out." + name + ".";
  const auto bound = [](double largest) { return 1e-4 * largest; };
  file.compare(out + "d", at::tensor(found, at::kDouble), bound);
  file.compare(out + "d_hat", at::tensor(estimates, at::kDouble), bound);
  compare_run(file, state, out, shots, sizes);
}

void check_run(const CaseContext& context, CaseFile& file, const std::string& kind, const std::string& name) {
  const Json& config = context.config;
  const plan::Optimizer optimizer = plan::optimizer_of(kind, "verify");
  const RunOf run = kind == "came"   ? came(config, name)
                    : kind == "lion" ? lion(config.at("runs").at(name))
                                     : adafactor(config.at("runs").at(name));
  OptimiserCase state(context, file, *run.optimiser, {.optimizer = optimizer});
  const int64_t steps = config.at("steps"), every = steps / 5;
  std::map<std::string, std::vector<at::Tensor>> shots;
  std::map<std::string, at::Tensor> sizes;  // root mean square before the last step
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == steps)
      for (const auto& param : state.names()) sizes[param] = state.param(param).square().mean().sqrt();
    state.step(*run.optimiser, {step, run.lr, 1.0});
    if (step % every == 0)
      for (const auto& param : state.names()) shots[param].push_back(state.param(param));
  }
  compare_run(file, state, "out." + name + ".", shots, sizes);
}

/// Sets the parameters to what the case says they are, which its steps have in place of gradients.
class Given final : public net::UnitUpdate {
 public:
  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override {
    std::vector<plan::StateSpec> states;
    for (const plan::StateSpec& state : plan::states_of({.ema = true})(param))
      if (state.kind == plan::kAverage) states.push_back(state);
    return states;
  }
  void update(const net::Slice& slice, const net::StepControl&) const override {
    std::copy_n(slice.grad, slice.count(), static_cast<float*>(slice.param));
  }
};

}  // namespace

CaseResults verify_optimiser(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const std::string kind = context.description.json.at("kind");
  for (const auto& name : optimiser_runs(file))
    kind == plan::name(plan::Optimizer::prodigy) ? check_prodigy(context, file, name)
                                                 : check_run(context, file, kind, name);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

CaseResults verify_ema(const CaseContext& context) {
  constexpr double kBound = 1e-6;
  CaseFile file(context.name, context.case_files().front());
  for (const auto& [name, run] : context.config.at("runs").items()) {
    optim::AverageOptions options;
    options.decay = context.config.at("decay");
    options.after = run.value("update_after_step", 0);
    if (run.value("use_ema_warmup", false)) {
      check_input(run.at("inv_gamma") == 1.0, "verify", "config.json: inv_gamma is not 1, as this build has it");
      options.power = run.at("power");
    }
    const optim::Averaged averaged(std::make_unique<const Given>(), options, plan::Masters::fp32);
    OptimiserCase state(context, file, averaged, {.ema = true}, {"in.param0.", "in.param."});
    const std::string out = "out." + name + ".";
    const int64_t steps = file.tensor(out + "decay").numel(), every = steps / 5;
    std::vector<double> decays;
    std::map<std::string, std::vector<at::Tensor>> shots;
    for (int64_t step = 1; step <= steps; ++step) {
      decays.push_back(optim::average_decay(options, step));
      state.step(averaged, {step, 0, 1.0});
      if (step % every == 0)
        for (const auto& param : state.names()) shots[param].push_back(state.state(param, std::string(plan::kAverage)));
    }
    file.compare(out + "decay", at::tensor(decays, at::kDouble), kBound);
    for (const auto& param : state.names()) file.compare(out + "shadow." + param, at::stack(shots[param]), kBound);
  }
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
