// Kinds "lion", "adafactor", "came", "prodigy", "schedule_free" and "ema": trajectories of parameters and states, on any mesh; and
// "grad_scaler".
#include <cmath>
#include <limits>

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/prodigy.h"
#include "tessera/optim/schedule_free.h"
#include "tessera/tools/verify/case.h"
#include "tessera/tools/verify/optimiser_case.h"

namespace tessera::tools {

namespace {

/// The optimiser of a run with its states and its rate.
struct RunOf {
  std::unique_ptr<const net::UnitUpdate> optimiser;
  plan::StateFormat format;
  double lr = 0;
};

RunOf lion(const RunSettings& run) {
  const double lr = run.at("lr");
  optim::LionOptions options;
  options.betas = run.at("betas").get<std::array<double, 2>>();
  options.weight_decay = run.value("weight_decay", 0.0);
  if (run.value("decoupled_weight_decay", false)) options.weight_decay /= lr;  // steps multiply it by their rate
  run.expect("cautious_factor", 1.0);
  run.value("use_triton", false);  // the same in another kernel
  return {std::make_unique<const optim::Lion>(options), options.format, lr};
}

RunOf adafactor(const RunSettings& run) {
  constexpr double kMostRelative = 1e-2;
  optim::AdafactorOptions options;
  options.eps = run.at("eps").get<std::array<double, 2>>();
  options.clip_threshold = run.at("clip_threshold");
  options.decay_rate = run.at("decay_rate");
  options.weight_decay = run.at("weight_decay");
  options.relative_step = run.at("relative_step");
  options.scale_parameter = run.value("scale_parameter", true);
  options.warmup_init = run.value("warmup_init", false);
  check_input(options.relative_step || !options.warmup_init, "verify", "warmup_init without relative_step");
  options.format.first_moment = run.has("beta1") && !run.at("beta1").is_null();
  options.beta1 = run.value("beta1", 0.0);
  const double own = options.warmup_init ? std::numeric_limits<double>::infinity() : kMostRelative;
  check_input(options.relative_step != (run.value("lr", -1.0) >= 0), "verify",
              "lr and relative_step: one of them says the rate");
  return {std::make_unique<const optim::Adafactor>(options), options.format,
          options.relative_step ? own : run.at("lr").get<double>()};
}

RunOf came(const RunSettings& run, const std::string& name) {
  optim::CameOptions options;
  options.betas = run.at("betas").get<std::array<double, 3>>();
  options.eps = run.at("eps").get<std::array<double, 2>>();
  options.clip_threshold = run.at("clip_threshold");
  options.weight_decay = run.either("weight_decay", "wd");
  if (name.starts_with("came_pytorch")) options.factoring = plan::Factoring::last_two;
  return {std::make_unique<const optim::Came>(options), options.format, run.at("lr")};
}

optim::ProdigyOptions prodigy(const RunSettings& run) {
  optim::ProdigyOptions options;
  options.betas = run.value("betas", options.betas);
  options.beta3 = run.value("beta3", 0.0);
  options.eps = run.value("eps", options.eps);
  options.d0 = run.value("d0", options.d0);
  options.d_coef = run.value("d_coef", options.d_coef);
  options.weight_decay = run.value("weight_decay", options.weight_decay);
  options.bias_correction = run.value("use_bias_correction", false);
  options.safeguard_warmup = run.value("safeguard_warmup", false);
  if (run.has("growth_rate") && !run.at("growth_rate").is_string())  // "inf"
    options.growth_rate = run.value("growth_rate", options.growth_rate);
  else if (run.has("growth_rate"))
    run.expect("growth_rate", "inf");
  run.expect("decouple", true);
  run.expect("slice_p", 1);
  run.value("fsdp_in_use", false);  // sums are over all ranks in any case
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
      at::Tensor found = what == "RMS" ? sizes[param] : state.state(param, what == "z" ? "exp_avg" : what);
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
void check_prodigy(const CaseContext& context, CaseFile& file, const std::string& name, const RunSettings& run) {
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

/// Weights in training mode (y), in evaluation mode (x), and the weights of the mean.
void check_schedule_free(const CaseContext& context, CaseFile& file, const std::string& name, const RunSettings& run) {
  optim::ScheduleFreeOptions options;
  const std::string impl = run.value("impl", std::string("adamw"));
  options.rectified = impl == "radam";
  check_input(options.rectified || impl == "adamw", "verify", "impl is " + impl + ", this build has adamw and radam");
  options.betas = run.value("betas", options.betas);
  options.eps = run.value("eps", options.eps);
  options.weight_decay = run.value("weight_decay", options.weight_decay);
  options.r = run.value("r", options.r);
  options.power = run.value("weight_lr_power", options.power);
  if (options.rectified) options.silent = run.value("silent_sgd_phase", options.silent);
  const int64_t warmup = options.rectified ? 0 : run.value("warmup_steps", int64_t{0});
  const auto rate = [lr = run.value("lr", 0.0025), warmup](int64_t step) {
    return warmup > 0 ? lr * std::min(1.0, static_cast<double>(step) / static_cast<double>(warmup)) : lr;
  };
  const optim::ScheduleFree optimiser(options, rate);
  OptimiserCase state(context, file, optimiser, options.format);
  const int64_t steps = context.config.at("steps"), every = steps / 5;
  std::map<std::string, std::vector<at::Tensor>> shots, averages;
  std::vector<double> rates, weights;
  for (int64_t step = 1; step <= steps; ++step) {
    state.step(optimiser, {step, rate(step), 1.0});
    rates.push_back(rate(step) * optimiser.rectification(step)), weights.push_back(optimiser.averaging(step));
    if (step % every != 0) continue;
    for (const auto& param : state.names()) {
      shots[param].push_back(state.param(param));
      averages[param].push_back(state.state(param, std::string(plan::kAverage)));
    }
  }
  const std::string out = "out." + name + ".";
  const auto exact = [](double largest) { return 1e-9 * largest; };
  file.compare(out + "lr", at::tensor(rates, at::kDouble), exact);
  file.compare(out + "ck", at::tensor(weights, at::kDouble), exact);
  std::map<std::string, at::Tensor> none;
  compare_run(file, state, out, shots, none);
  for (const auto& param : state.names()) {
    const std::string key = out + "eval." + param;
    const at::Tensor start = file.tensor("in.param." + param);
    const double move = file.has(key) ? (file.tensor(key)[4] - start).abs().max().item<double>() : 0;
    file.compare(key, at::stack(averages[param]), [move](double largest) { return 2e-4 * move + 4e-6 * largest; });
  }
}

void check_run(const CaseContext& context, CaseFile& file, const std::string& kind, const std::string& name,
               const RunSettings& settings) {
  const RunOf run = kind == "came" ? came(settings, name) : kind == "lion" ? lion(settings) : adafactor(settings);
  OptimiserCase state(context, file, *run.optimiser, run.format);
  const int64_t steps = context.config.at("steps"), every = steps / 5;
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
    check_run_of(file, context.config, name, [&](const RunSettings& run) {
      if (kind == "schedule_free") return check_schedule_free(context, file, name, run);
      kind == plan::name(plan::Optimizer::prodigy) ? check_prodigy(context, file, name, run)
                                                   : check_run(context, file, kind, name, run);
    });
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

CaseResults verify_ema(const CaseContext& context) {
  constexpr double kBound = 1e-6;
  CaseFile file(context.name, context.case_files().front());
  const auto check = [&](const std::string& name, const RunSettings& run) {
    optim::AverageOptions options;
    options.decay = run.at("decay");
    options.after = run.value("update_after_step", int64_t{0});
    options.inv_gamma = run.value("inv_gamma", options.inv_gamma);
    options.least = run.value("min_decay", options.least);
    const double power = run.value("power", 2.0 / 3);  // which a run without warm-up has, and does not use
    if (run.value("use_ema_warmup", false)) options.power = power;
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
  };
  for (const auto& [name, settings] : context.config.at("runs").items())
    check_run_of(file, context.config, name, [&, &name = name](const RunSettings& run) { check(name, run); });
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

/// Scale, growth and skipped steps for a given pattern of infinite and NaN gradients.
CaseResults verify_grad_scaler(const CaseContext& context) {
  const Settings& config = context.config;
  CaseFile file(context.name, context.case_files().front());
  optim::GradScaler scaler(
      {config.at("init_scale"), config.at("growth_factor"), config.at("backoff_factor"), config.at("growth_interval")});
  const double lr = config.at("lr");
  const at::Tensor grads = file.tensor("in.grad"), found = file.tensor("in.found").to(at::kLong);
  at::Tensor param = file.tensor("in.param").clone();
  check_input(grads.dim() == 2 && found.dim() == 1 && found.size(0) == grads.size(0) &&
                  grads.size(1) == param.numel() && param.numel() > 0,
              "verify", file.case_name() + "/" + file.file_name() + ": in.grad, in.found and in.param do not agree",
              "expected [n, k], [n] and [k]");
  const int64_t steps = grads.size(0);
  at::Tensor scale = at::empty({steps}, at::kFloat), params = at::empty_like(grads);
  at::Tensor tracker = at::empty({steps}, at::kLong), stepped = at::empty({steps}, at::kLong);
  for (int64_t i = 0; i < steps; ++i) {
    // As in training: the scaled gradient's norm tells all ranks whether it is whole, and unscaling is part of the
    // step.
    at::Tensor scaled = grads[i] * scaler.scale();
    if (found[i].item<int64_t>() == 1) scaled[0] = std::numeric_limits<float>::infinity();
    if (found[i].item<int64_t>() == 2) scaled[0] = std::numeric_limits<float>::quiet_NaN();
    const float unscale = 1 / scaler.scale();
    const bool steps_now =
        scaler.update(std::isfinite(ops::sum_of_squares(scaled.const_data_ptr<float>(), scaled.numel())));
    if (steps_now) param.sub_(scaled * unscale, lr);
    scale[i] = scaler.scale();
    tracker[i] = scaler.growth_tracker();
    stepped[i] = steps_now ? 1 : 0;
    params[i].copy_(param);
  }
  file.compare("out.scale", scale, 0.0);
  file.compare("out.growth_tracker", tracker, 0.0);
  file.compare("out.stepped", stepped, 0.0);
  file.compare("out.param", params, 1e-6);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
