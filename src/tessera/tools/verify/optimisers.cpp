// Kinds "lion", "adafactor", "came", "prodigy", "schedule_free", "muon" and "ema": trajectories of parameters and states, on any mesh; and
// "grad_scaler".
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/optim/muon.h"
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

/// Muon's numbers of a run, by the program that it is of: `one_rate`: that whose AdamW has the same rate and decay.
optim::MuonOptions muon(const RunSettings& run, bool one_rate, bool exact) {
  optim::MuonOptions options;
  options.momentum = run.value("momentum", options.momentum);
  options.nesterov = run.value("nesterov", true);
  options.coefficients = run.value("ns_coefficients", options.coefficients);
  options.eps = run.value("eps", options.eps);
  if (run.has("ns_steps") && run.at("ns_steps").is_number())  // else it is that of the iterations alone
    options.format.iterations = run.at("ns_steps");
  check_input(options.format.iterations >= 1 && options.format.iterations <= 1000, "verify",
              "ns_steps is " + std::to_string(options.format.iterations) + ", expected 1 to 1000");
  options.format.matrices = exact ? DType::f32 : DType::bf16;
  const std::string impl = one_rate ? "hunyuan" : run.value("impl", std::string("torch"));
  check_input(one_rate || impl == "torch" || impl == "kj", "verify",
              "impl is " + impl + ", this build has torch and kj");
  const auto betas = [&](const char* key, std::array<double, 2> usual) { return run.value(key, usual); };
  if (one_rate) {
    options.damped = false, options.adds_eps = true;
    options.weight_decay = options.adamw.weight_decay = run.value("weight_decay", 0.1);
    options.adamw.betas = betas("adamw_betas", {0.95, 0.95});
    options.adamw.eps = run.value("adamw_eps", options.adamw.eps), options.adamw.early_eps = true;
  } else if (impl == "kj") {
    options.scale = optim::MuonOptions::Scale::original, options.adds_eps = options.batches = true;
    options.weight_decay = run.value("weight_decay", 0.0);
    options.adamw.betas = betas("adam_betas", {0.9, 0.95});
    options.adamw.eps = run.value("adam_eps", 1e-10);
    options.adamw.weight_decay = run.value("adam_weight_decay", 0.0);
    options.adamw_rate = run.value("adam_lr", 3e-4) / run.value("lr", 0.02);
  } else {
    const std::string adjust = run.value("adjust_lr_fn", std::string("original"));
    check_input(adjust == "original" || adjust == "match_rms_adamw", "verify",
                "adjust_lr_fn is " + adjust + ", this build has original and match_rms_adamw");
    if (adjust == "original") options.scale = optim::MuonOptions::Scale::original;
    options.weight_decay = run.value("weight_decay", 0.1);
  }
  return options;
}

/// A parameter without a gradient in some steps: AdamW leaves it out and does not count the step; a matrix's is zero.
class Missing final : public net::UnitUpdate {
 public:
  Missing(const optim::Muon& muon, const CaseFile& file) : muon_(muon), file_(file) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return muon_.states(param); }
  void direct(const net::Slice& slice, const net::StepControl& control) const override { muon_.direct(slice, control); }
  void transform(const plan::ParamSpec& param, const at::Tensor& matrix, const at::Tensor& work) const override {
    muon_.transform(param, matrix, work);
  }
  void update(const net::Slice& slice, const net::StepControl& control) const override {
    net::StepControl own = control;
    if (const std::string name = "in.missing." + slice.spec->name; !slice.spec->whole && file_.has(name)) {
      const at::Tensor missing = file_.tensor(name).to(at::kLong).narrow(0, 0, control.step);
      if (missing[control.step - 1].item<int64_t>() != 0) return;
      own.step -= missing.ne(0).sum().item<int64_t>();
    }
    muon_.update(slice, own);
  }

 private:
  const optim::Muon& muon_;
  const CaseFile& file_;
};

void check_muon(const CaseContext& context, CaseFile& file, const std::string& name, const RunSettings& run, bool exact,
                bool one_rate) {
  const optim::MuonOptions options = muon(run, one_rate, exact);
  const double lr = run.value("lr", one_rate ? 5e-5 : run.value("impl", std::string("torch")) == "kj" ? 0.02 : 1e-3);
  const optim::Muon optimiser(options);
  const Missing update(optimiser, file);
  OptimiserCase state(context, file, update, options.format);
  const int64_t steps = context.config.at("steps"), every = steps / 5;
  std::map<std::string, std::vector<at::Tensor>> shots;
  for (int64_t step = 1; step <= steps; ++step) {
    state.step(update, {step, lr, 1.0});
    if (step % every == 0)
      for (const auto& param : state.names()) shots[param].push_back(state.param(param));
  }
  const std::string out = "out." + name + (exact ? ".fp32." : ".bf16.");
  const std::map<std::string, std::string> states = {
      {"momentum_buffer", "exp_avg"}, {"moment1", "exp_avg"}, {"moment2", "exp_avg_sq"}};
  for (const auto& param : state.names()) {
    const std::string key = out + "param." + param;
    if (!file.has(key)) continue;  // runs of PyTorch's have matrices alone
    const at::Tensor expected = file.tensor(key), found = at::stack(shots[param]);
    const double move = (expected[-1] - file.tensor("in.param." + param)).abs().max().item<double>();
    file.compare(key, found, [&](double largest) { return exact ? 5e-4 * move + 4e-6 * largest : 0.1 * move; });
    if (!exact && found.sizes() == expected.sizes() &&
        !((found - expected).square().mean().sqrt().item<double>() <= 0.02 * move))
      file.fail(key + ", root mean square");
    for (const std::string& stored : file.names(out + "state.")) {
      if (!stored.ends_with("." + param)) continue;
      const size_t begin = out.size() + 6;
      const std::string what = stored.substr(begin, stored.size() - begin - param.size() - 1);
      const auto kind = states.find(what);
      at::Tensor held = state.state(param, kind == states.end() ? what : kind->second);
      if (!held.defined()) {
        file.fail(stored);
        continue;
      }
      const at::Tensor reference = file.tensor(stored);
      if (held.numel() == reference.numel()) held = held.view(reference.sizes());
      file.compare(stored, held, [](double largest) { return 1e-5 * largest; });
    }
  }
}

/// The iterations alone, with PyTorch's numbers: "out.ns.NAME.stepsK.DTYPE".
void check_iterations(CaseFile& file) {
  for (const std::string& key : file.names("out.ns.")) {
    const size_t type = key.rfind('.'), steps = key.rfind(".steps", type);
    if (steps == key.npos || steps < 7) continue;
    const std::string name = key.substr(7, steps - 7), dtype = key.substr(type + 1);
    int64_t count = 0;
    std::from_chars(key.data() + steps + 6, key.data() + type, count);
    if (count < 1 || !file.has("in.ns." + name) || (dtype != "fp32" && dtype != "bf16")) continue;
    const bool exact = dtype == "fp32";
    at::Tensor matrix = file.tensor("in.ns." + name).clone();
    check_input(matrix.dim() == 2 && matrix.numel() > 0, "verify", "in.ns." + name + " is no matrix");
    matrix = matrix.to(exact ? at::kFloat : at::kBFloat16);
    const int64_t bytes = plan::transform_bytes({1, matrix.size(0), matrix.size(1)}, exact ? DType::f32 : DType::bf16);
    optim::orthogonalise(matrix, at::empty({bytes}, at::kByte), count, {});
    file.compare(key, matrix.to(at::kFloat), [exact](double largest) { return exact ? 2e-4 * largest : 0.06; });
  }
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
    const auto lies = at::TensorOptions(at::kFloat).device(slice.on_device ? device::here() : at::Device(at::kCPU));
    const auto of = [&](void* data) { return at::from_blob(data, {slice.count()}, lies); };
    ops::copy_bytes(of(slice.param), of(const_cast<float*>(slice.grad)));
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

CaseResults verify_muon(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  for (const auto& [key, prefix] : {std::pair("shapes", "in.param."), {"ns_shapes", "in.ns."}}) {
    if (!context.config.contains(key)) continue;
    for (const auto& [name, shape] : context.config.at(key).items())
      check_input(
          file.has(prefix + name) && file.tensor(prefix + name).sizes().vec() == shape.get<std::vector<int64_t>>(),
          "verify", std::string(key) + " of config.json and the case's " + prefix + name + " do not agree");
  }
  const bool one_rate = context.description.json.at("kind") != "muon";
  std::set<std::string> runs;
  for (const std::string& run : optimiser_runs(file)) runs.insert(run.substr(0, run.rfind('.')));
  for (const std::string& name : runs)
    check_run_of(file, context.config, name, [&](const RunSettings& run) {
      for (const bool exact : {true, false})
        if (!file.names("out." + name + (exact ? ".fp32." : ".bf16.")).empty())
          check_muon(context, file, name, run, exact, one_rate);
    });
  check_iterations(file);
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
