// Kinds where the mesh means nothing: every rank computes the same.
#include <map>

#include "tessera/base/bounded_regex.h"
#include "tessera/base/check.h"
#include "tessera/job/optimiser.h"
#include "tessera/ops/adamw.h"
#include "tessera/optim/adamw.h"
#include "tessera/recipe/lr_schedule.h"
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

/// A run's rates as the references group parameters, and what of them is not decayed.
struct GroupedRun {
  job::RateOf rate;
  bool parts = false;  ///< of a model that is trained as a whole: a constant schedule, vectors do not decay
  bool decays(const std::string& name, int64_t dims) const {
    return !parts || (dims != 1 && name.find("llm_adapter.embed") == std::string::npos);
  }
};

/// Substrings of names in this order, and the key of their rate.
constexpr std::pair<std::string_view, const char*> kParts[] = {{"llm_adapter", "llm_adapter_lr"},
                                                               {".self_attn", "self_attn_lr"},
                                                               {".cross_attn", "cross_attn_lr"},
                                                               {".mlp", "mlp_lr"},
                                                               {".adaln_modulation", "mod_lr"}};

job::RateOf rate_of_parts(const RunSettings& run) {
  const double lr = run.at("lr");
  const Json rates = run.at("dp_model").json();
  for (const auto& [key, value] : rates.items())
    check_input(std::ranges::any_of(kParts, [&](const auto& part) { return key == part.second; }), "verify",
                "dp_model." + key + ": not known to this build");
  return [=](const plan::ParamSpec& param) {
    for (const auto& [text, key] : kParts)
      if (param.name.find(text) != std::string::npos) return rates.contains(key) ? rates.at(key).get<double>() / lr : 1;
    return 1.0;
  };
}

job::RateOf rate_of_patterns(const RunSettings& run) {
  const double lr = run.at("lr");
  std::vector<std::pair<BoundedRegex, double>> patterns;
  for (const Json& row : run.at("patterns").json()) {
    const auto pattern = BoundedRegex::parse(row.at(0).get<std::string>());
    check_input(pattern.has_value(), "verify", "patterns: " + row.at(0).dump() + " is outside our bounds");
    patterns.emplace_back(*pattern, row.at(1).get<double>() / lr);
  }
  return [=](const plan::ParamSpec& param) {
    const std::string module = param.name.substr(0, param.name.find(".lora_"));
    for (const auto& [pattern, rate] : patterns)
      if (pattern.matches(module)) return rate;
    return 1.0;
  };
}

GroupedRun grouped_run(const std::string& name, const RunSettings& run) {
  for (const char* other : {"amsgrad", "maximize"}) run.expect(other, false);
  const std::string schedule = run.at("schedule");
  check_input(schedule.starts_with("linear warm-up over `warmup` steps, then linear to 0"), "verify",
              "schedule: not known to this build");
  if (name == "parts") return {rate_of_parts(run), true};
  const job::RateOf plus = job::plus_rate(run.at("ratio")), one = job::plus_rate(1);
  if (name == "plain") return {one};
  if (name == "lora_plus") return {plus};
  const job::RateOf pattern = rate_of_patterns(run);
  if (name == "patterns") return {pattern};
  check_input(name == "patterns_lora_plus", "verify", name + ": not known to this build");
  return {[=](const plan::ParamSpec& param) { return pattern(param) * plus(param); }};
}

/// Of all groups in a step, from 0: (s + 1) / warm-up, then linear to 0.
double warmed(const GroupedRun& run, const RunSettings& settings, int64_t step) {
  recipe::LrSchedule schedule;
  schedule.name = run.parts ? "constant" : "linear";
  schedule.lr = settings.at("lr");
  schedule.warmup_steps = settings.at("warmup");
  schedule.total_steps = settings.at("steps");
  return recipe::learning_rate(schedule, step < schedule.warmup_steps ? step + 1 : step);
}

}  // namespace

CaseResults verify_rates(const CaseContext& context) {
  const Settings& config = context.config;
  CaseFile file(context.name, context.case_files().front());
  const int64_t steps = config.at("steps"), every = steps / 5;
  for (const char* of_the_inputs : {"blocks", "dim", "ffn", "rank", "alpha", "dp_params", "_frozen_in_parts"})
    config.read(of_the_inputs);
  const auto check = [&](const std::string& name, const RunSettings& settings) {
    const GroupedRun run = grouped_run(name, settings);
    const auto betas = settings.at("betas").get<std::array<double, 2>>();
    const optim::AdamWOptions options{
        .betas = {betas[0], betas[1]}, .eps = settings.at("eps"), .weight_decay = settings.at("weight_decay")};
    for (const bool decays : {true, false}) {  // those that do not decay are those of an optimiser without it
      if (!decays && !run.parts) continue;
      optim::AdamWOptions own = options;
      if (!decays) own.weight_decay = 0;
      const auto adamw = job::with_rates(std::make_unique<const optim::AdamW>(own), run.rate);
      OptimiserCase state(context, file, *adamw, {});
      std::map<std::string, at::Tensor> shots;
      for (int64_t step = 0; step < steps; ++step) {
        state.step(*adamw, {.step = step + 1, .lr = warmed(run, settings, step)});
        for (const std::string& key : file.names("out." + name + ".param.")) {
          if ((step + 1) % every != 0) continue;
          const std::string param = key.substr(name.size() + 11);
          const at::Tensor now = state.param(param);
          if (run.decays(param, now.dim()) != decays) continue;
          at::Tensor& all = shots[key];
          all = all.defined() ? at::cat({all, now.unsqueeze(0)}) : now.unsqueeze(0);
        }
      }
      for (const auto& [key, values] : shots) {
        const std::string param = key.substr(name.size() + 11);
        const at::Tensor last = file.tensor(key).select(0, -1);
        const double move = (last - file.tensor("in.param." + param)).abs().max().item<double>();
        file.compare(key, values, [move](double largest) { return 2e-4 * move + 4e-6 * largest; });
        if (run.rate({param, {1}}) == 0) continue;  // it has no states there
        for (const std::string kind : {"exp_avg", "exp_avg_sq"})
          file.compare("out." + name + ".state." + kind + "." + param, state.state(param, kind),
                       [](double largest) { return 1e-4 * largest; });
      }
    }
    if (run.parts && config.contains("_frozen_in_parts"))
      for (const Json& still : config.at("_frozen_in_parts").json())
        check_input(run.rate({still.get<std::string>(), {1}}) == 0, "verify",
                    "_frozen_in_parts: " + still.dump() + " is trained here");
    const Json groups = config.at("_groups").json().at(name);
    at::Tensor lr = at::empty({steps, static_cast<int64_t>(groups.size())}, at::kDouble);
    for (int64_t step = 0; step < steps; ++step)
      for (size_t g = 0; g < groups.size(); ++g)
        lr[step][static_cast<int64_t>(g)] =
            warmed(run, settings, step) * run.rate({groups.at(g).at("params").at(0).get<std::string>(), {1}});
    if (!run.parts || file.has("out." + name + ".lr"))
      file.compare("out." + name + ".lr", lr, [](double largest) { return 1e-9 * largest; });
  };
  for (const auto& name : optimiser_runs(file))
    check_run_of(file, config, name, [&](const RunSettings& settings) { check(name, settings); });
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

CaseResults verify_adamw(const CaseContext& context) {
  const Settings& config = context.config;
  CaseFile file(context.name, context.case_files().front());
  const int64_t steps = config.at("steps"), every = steps / 5;
  std::vector<std::string> params;
  for (const auto& name : file.names("in.param.")) params.push_back(name.substr(9));

  recipe::LrSchedule schedule;
  schedule.name = "cosine_min";
  schedule.lr = config.at("lr");
  schedule.eta_min = config.at("eta_min");
  schedule.warmup_steps = config.at("warmup");
  schedule.total_steps = steps;
  at::Tensor lr = at::empty({steps}, at::kDouble);
  for (int64_t i = 0; i < steps; ++i) lr[i] = recipe::learning_rate(schedule, i);
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
      control.lr = run.scheduled ? recipe::learning_rate(schedule, step) : settings.at("lr_big").get<double>();
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
    recipe::LrSchedule schedule;
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
    for (int64_t i = 0; i < schedule.total_steps; ++i) lr[i] = recipe::learning_rate(schedule, i);
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
