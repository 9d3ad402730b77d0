#include "tessera/job/optimiser.h"

#include "tessera/base/check.h"
#include "tessera/models/common/trained_parts.h"
#include "tessera/net/adapters.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/schedule_free.h"
#include "tessera/recipe/parameter_keys.h"

namespace tessera::job {

optim::ProdigyOptions prodigy_options(const recipe::Recipe::Train& train) {
  optim::ProdigyOptions options;
  options.betas = {train.betas[0], train.betas[1]};
  if (train.beta3 > 0) options.beta3 = train.beta3;
  options.eps = train.eps, options.weight_decay = train.weight_decay;
  options.d0 = train.d0, options.d_coef = train.d_coef;
  if (train.growth_rate > 0) options.growth_rate = train.growth_rate;
  options.bias_correction = train.bias_correction, options.safeguard_warmup = train.safeguard_warmup;
  return options;
}

namespace {

using Made = std::unique_ptr<const net::UnitUpdate>;
/// Optimisers of one kind with numbers of their own, and a rate for each parameter.
class ByParameter final : public net::UnitUpdate {
 public:
  struct Choice {
    size_t optimiser = 0;
    double rate = 1;  ///< a multiple of the schedule's; 0: the parameter stays as it is
  };
  using Choose = std::function<Choice(const plan::ParamSpec&)>;
  ByParameter(std::vector<Made> optimisers, Choose choose)
      : optimisers_(std::move(optimisers)), choose_(std::move(choose)) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return any().states(param); }
  bool totals() const override { return any().totals(); }
  int rounds() const override { return any().rounds(); }
  int64_t sums(const plan::ParamSpec& param, int round) const override { return any().sums(param, round); }
  void update(const net::Slice& slice, const net::StepControl& control) const override {
    const Choice choice = choose_(*slice.spec);
    if (choice.rate != 0) of(choice).update(slice, at_rate(choice, control));
  }
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override {
    const Choice choice = choose_(*slice.spec);
    of(choice).add_sums(slice, at_rate(choice, control), round, sums);
  }
  void take_sums(const net::Slice& slice, const net::StepControl& control, int round) const override {
    const Choice choice = choose_(*slice.spec);
    of(choice).take_sums(slice, at_rate(choice, control), round);
  }
  void direct(const net::Slice& slice, const net::StepControl& control) const override {
    const Choice choice = choose_(*slice.spec);
    of(choice).direct(slice, at_rate(choice, control));
  }
  void transform(const plan::ParamSpec& param, const at::Tensor& matrix, const at::Tensor& work) const override {
    of(choose_(param)).transform(param, matrix, work);
  }

 private:
  const net::UnitUpdate& any() const { return *optimisers_.front(); }
  const net::UnitUpdate& of(const Choice& choice) const { return *optimisers_.at(choice.optimiser); }
  static net::StepControl at_rate(const Choice& choice, net::StepControl control) {
    control.lr *= choice.rate;
    return control;
  }

  const std::vector<Made> optimisers_;
  const Choose choose_;
};

using Make = Made (*)(const recipe::Recipe::Train&, plan::StateFormat, uint64_t seed);

/// In the order of plan::Optimizer.
constexpr Make kMakes[] = {
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      return std::make_unique<const optim::AdamW>(
          optim::AdamWOptions{{t.betas[0], t.betas[1]}, t.eps, t.weight_decay, format, seed});
    },
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      // each step multiplies the decay by its own rate
      const double decay = t.decoupled_decay && t.lr > 0 ? t.weight_decay / t.lr : t.weight_decay;
      return std::make_unique<const optim::Lion>(optim::LionOptions{{t.betas[0], t.betas[1]}, decay, format, seed});
    },
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      optim::AdafactorOptions options;
      options.eps = {t.factored_eps[0], t.factored_eps[1]};
      options.weight_decay = t.weight_decay, options.beta1 = t.factored_beta1;
      options.relative_step = options.scale_parameter = t.relative_step;
      options.warmup_init = t.relative_step && t.warmup_init;
      options.format = format, options.seed = seed;
      return std::make_unique<const optim::Adafactor>(options);
    },
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      optim::CameOptions options;
      options.betas = {t.betas[0], t.betas[1], t.betas[2]};
      options.eps = {t.factored_eps[0], t.factored_eps[1]};
      options.weight_decay = t.weight_decay;
      options.format = format, options.seed = seed;
      return std::make_unique<const optim::Came>(options);
    },
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      optim::ProdigyOptions options = prodigy_options(t);
      options.format = format, options.seed = seed;
      return std::make_unique<const optim::Prodigy>(options);
    },
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      optim::MuonOptions options{.momentum = t.momentum, .nesterov = t.nesterov, .weight_decay = t.weight_decay};
      std::ranges::copy(t.ns_coefficients, options.coefficients.begin());
      if (t.scale_original) options.scale = optim::MuonOptions::Scale::original;
      options.adamw = {.betas = {t.betas[0], t.betas[1]}, .eps = t.eps, .weight_decay = t.weight_decay};
      if (t.muon_adam_lr > 0) options.adamw_rate = t.muon_adam_lr / t.lr;
      options.format = format, options.seed = seed;
      return std::make_unique<const optim::Muon>(options);
    },
};

Made schedule_free(const recipe::Recipe& recipe, const recipe::Recipe::Train& t, plan::StateFormat format) {
  optim::ScheduleFreeOptions options{.betas = {t.betas[0], t.betas[1]}, .eps = t.eps, .weight_decay = t.weight_decay};
  options.format = format, options.seed = static_cast<uint64_t>(recipe.run.seed);
  return std::make_unique<const optim::ScheduleFree>(
      options, [schedule = recipe.lr_schedule](int64_t step) { return recipe::learning_rate(schedule, step - 1); });
}

Made grouped(const recipe::Recipe& recipe, plan::StateFormat format, const net::Denoiser* model) {
  const auto make = [&](const recipe::Recipe::Train& train) {
    if (recipe::is_schedule_free(recipe)) return schedule_free(recipe, train, format);
    return kMakes[static_cast<size_t>(format.optimizer)](train, format, static_cast<uint64_t>(recipe.run.seed));
  };
  const recipe::ParameterKeys keys = recipe::parameter_keys(recipe);
  if (keys.groups.empty()) return make(recipe.train);
  check_internal(model, "job.optimiser", "groups of parameters are found in a model, and none is given");
  std::vector<Made> optimisers;  // of all others, and of each group
  optimisers.push_back(make(recipe.train));
  std::vector<double> rates = {1};
  std::vector<std::string> patterns;
  for (const recipe::ParameterGroup& group : keys.groups) {
    recipe::Recipe::Train own = recipe.train;
    own.weight_decay = group.weight_decay.value_or(own.weight_decay);
    optimisers.push_back(make(own));
    rates.push_back(group.factor);
    patterns.push_back(group.match);
  }
  return std::make_unique<const ByParameter>(
      std::move(optimisers),
      [rates, groups = models::parameter_groups(*model, patterns)](const plan::ParamSpec& param) {
        const auto found = groups.find(param.name);
        const size_t group = found == groups.end() ? 0 : static_cast<size_t>(found->second) + 1;
        return ByParameter::Choice{group, rates.at(group)};
      });
}

}  // namespace

std::unique_ptr<const net::UnitUpdate> with_rates(std::unique_ptr<const net::UnitUpdate> optimiser, RateOf rate) {
  std::vector<Made> one;
  one.push_back(std::move(optimiser));
  return std::make_unique<const ByParameter>(std::move(one), [rate = std::move(rate)](const plan::ParamSpec& param) {
    return ByParameter::Choice{0, rate(param)};
  });
}

RateOf plus_rate(double ratio) {
  return [ratio](const plan::ParamSpec& param) { return param.name.ends_with(net::kLoraB) ? ratio : 1; };
}

std::unique_ptr<const net::UnitUpdate> optimiser_of(const recipe::Recipe& recipe, plan::StateFormat format,
                                                    const net::Denoiser* model) {
  Made made = grouped(recipe, format, model);
  if (recipe.lora.on && recipe.lora.plus_ratio != 1)
    made = with_rates(std::move(made), plus_rate(recipe.lora.plus_ratio));
  if (!format.ema || recipe::is_schedule_free(recipe)) return made;
  const optim::AverageOptions average{recipe.train.ema > 0 ? recipe.train.ema : optim::AverageOptions{}.decay,
                                      recipe.train.ema_after, recipe.train.ema_power, recipe.train.ema_inv_gamma,
                                      recipe.train.ema_min_decay};
  return std::make_unique<const optim::Averaged>(std::move(made), average, format.masters);
}

}  // namespace tessera::job
