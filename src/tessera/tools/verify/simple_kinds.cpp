// Kinds where the mesh means nothing: every rank computes the same.
#include "tessera/base/check.h"
#include "tessera/ops/adamw.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/schedule/lr_schedule.h"
#include "tessera/tools/verify/case.h"
#include "tessera/tools/verify/optimiser_case.h"

namespace tessera::tools {

namespace {

/// What a run of the adamw case changes, by its name.
struct AdamWRun {
  bool scheduled, clipped;
  optim::AdamWOptions options;
};

AdamWRun adamw_run(const std::string& name, const RunSettings& settings) {
  AdamWRun run{name.starts_with("sched"), name.ends_with("_clip"), {}};
  const auto betas = settings.at("betas").get<std::array<double, 2>>();
  run.options.betas = {betas[0], betas[1]};
  run.options.eps = settings.at("eps");
  run.options.weight_decay = settings.either("weight_decay", "wd");
  if (name.find("bigeps_nowd") != std::string::npos) run.options = {{0.9, 0.95}, 1e-2, 0.0};
  for (const char* other : {"amsgrad", "maximize"}) settings.expect(other, false);
  return run;
}

}  // namespace

CaseResults verify_adamw(const CaseContext& context) {
  const Settings& config = context.config;
  CaseFile file(context.name, context.case_files().front());
  const int64_t steps = config.at("steps"), every = steps / 5;
  std::vector<std::string> params;
  for (const auto& name : file.names("in.param.")) params.push_back(name.substr(9));

  optim::LrSchedule schedule;
  schedule.name = "cosine_min";
  schedule.lr = config.at("lr");
  schedule.eta_min = config.at("eta_min");
  schedule.warmup_steps = config.at("warmup");
  schedule.total_steps = steps;
  at::Tensor lr = at::empty({steps}, at::kDouble);
  for (int64_t i = 0; i < steps; ++i) lr[i] = optim::learning_rate(schedule, i);
  file.compare("out.lr", lr, [](double largest) { return 1e-9 * largest; });

  const auto check = [&](const std::string& name, const RunSettings& settings) {
    const AdamWRun run = adamw_run(name, settings);
    const optim::AdamW adamw(run.options);
    OptimiserCase state(context, file, adamw, {});
    std::vector<at::Tensor> grads, starts, shots(params.size());
    for (size_t p = 0; p < params.size(); ++p) {
      starts.push_back(file.tensor("in.param." + params[p]));
      grads.push_back(file.tensor("in.grad." + params[p]).view({steps, -1}));
      shots[p] = at::empty({5, starts[p].numel()}, at::kFloat);
    }
    at::Tensor norms = at::empty({steps}, at::kDouble);
    for (int64_t step = 0; step < steps; ++step) {
      double squares = 0;
      for (auto& g : grads) squares += ops::sum_of_squares(g[step].const_data_ptr<float>(), g.size(1));
      norms[step] = std::sqrt(squares);
      net::StepControl control;
      control.step = step + 1;
      control.lr = run.scheduled ? optim::learning_rate(schedule, step) : settings.at("lr_big").get<double>();
      control.scale = run.clipped ? optim::clip_coefficient(std::sqrt(squares), settings.at("clip")) : 1.0;
      state.step(adamw, control);
      if ((step + 1) % every != 0) continue;
      for (size_t p = 0; p < params.size(); ++p)
        shots[p][(step + 1) / every - 1].copy_(state.param(params[p]).view({-1}));
    }
    const std::string prefix = "out." + name + ".";
    for (size_t p = 0; p < params.size(); ++p) {
      const std::string key = prefix + "param." + params[p];
      std::vector<int64_t> shape = starts[p].sizes().vec();
      shape.insert(shape.begin(), 5);
      double move = 0;
      if (file.has(key)) move = (file.tensor(key)[4].view({-1}) - starts[p].view({-1})).abs().max().item<double>();
      file.compare(key, shots[p].view(shape), [move](double largest) { return 2e-4 * move + 4e-6 * largest; });
      for (const std::string kind : {"exp_avg", "exp_avg_sq"})
        file.compare(prefix + "state." + kind + "." + params[p], state.state(params[p], kind),
                     [](double largest) { return 1e-4 * largest; });
    }
    if (run.clipped) file.compare(prefix + "grad_norm", norms, [](double largest) { return 1e-5 * largest; });
  };
  for (const auto& name : optimiser_runs(file))
    check_run_of(file, config, name, [&](const RunSettings& settings) { check(name, settings); });
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

CaseResults verify_lr_schedules(const CaseContext& context) {
  const Settings& config = context.config;
  CaseFile file(context.name, context.case_files().front());
  for (const auto& key : file.names("out.")) {
    optim::LrSchedule schedule;
    schedule.name = key.substr(4);
    schedule.lr = config.at("lr");
    schedule.total_steps = config.at("total");
    schedule.warmup_steps = config.at("warmup");
    schedule.num_cycles = config.at("num_cycles");
    schedule.power = config.at("power");
    schedule.stable_steps = config.at("wsd").at("stable");
    schedule.decay_steps = config.at("wsd").at("decay");
    schedule.min_lr_ratio = config.at("wsd").at("min_lr_ratio");
    schedule.start_factor = config.at("torch_linear_then_cosine").at("start_factor");
    if (schedule.name == "torch_linear_then_cosine")
      schedule.eta_min = config.at("torch_linear_then_cosine").at("eta_min");
    schedule.initial_lr = config.at("opensora_initial_lr");
    at::Tensor lr = at::empty({schedule.total_steps}, at::kDouble);
    for (int64_t i = 0; i < schedule.total_steps; ++i) lr[i] = optim::learning_rate(schedule, i);
    // Relative 1e-9 of every value, not of the largest: compare each in units of itself.
    const at::Tensor expected = file.tensor(key);
    bool close = expected.sizes() == lr.sizes();
    if (close) close = ((lr - expected).abs() <= 1e-9 * expected.abs() + 1e-300).all().item<bool>();
    file.compare(key, lr, [close](double largest) { return close ? 1e-9 * largest : -1.0; });
  }
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
