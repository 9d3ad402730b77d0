#include "tessera/job/optimiser.h"

#include "tessera/base/check.h"
#include "tessera/models/common/trained_parts.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/lion.h"
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
};

/// One optimiser with other numbers for groups of parameters: an instance for each group, and a factor of its rate.
class Grouped final : public net::UnitUpdate {
 public:
  struct Group {
    Made optimiser;
    double factor = 1;
  };
  /// `group_of`: by the name of a parameter, an index into `groups`; all others are of `others`.
  Grouped(Made others, std::vector<Group> groups, std::map<std::string, int> group_of)
      : others_{std::move(others)}, groups_(std::move(groups)), group_of_(std::move(group_of)) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return any().states(param); }
  bool on_device() const override { return any().on_device(); }
  bool totals() const override { return any().totals(); }
  int rounds() const override { return any().rounds(); }
  int64_t sums(const plan::ParamSpec& param, int round) const override { return any().sums(param, round); }
  void update(const net::Slice& slice, const net::StepControl& control) const override {
    const Group& group = of(slice);
    group.optimiser->update(slice, own(group, control));
  }
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override {
    const Group& group = of(slice);
    group.optimiser->add_sums(slice, own(group, control), round, sums);
  }
  void take_sums(const net::Slice& slice, const net::StepControl& control, int round) const override {
    const Group& group = of(slice);
    group.optimiser->take_sums(slice, own(group, control), round);
  }

 private:
  const net::UnitUpdate& any() const { return *others_.optimiser; }
  const Group& of(const net::Slice& slice) const {
    const auto found = group_of_.find(slice.spec->name);
    return found == group_of_.end() ? others_ : groups_.at(static_cast<size_t>(found->second));
  }
  static net::StepControl own(const Group& group, net::StepControl control) {
    control.lr *= group.factor;
    return control;
  }

  const Group others_;
  const std::vector<Group> groups_;
  const std::map<std::string, int> group_of_;
};

Made schedule_free(const recipe::Recipe& recipe, const recipe::Recipe::Train& t, plan::StateFormat format) {
  optim::ScheduleFreeOptions options{.betas = {t.betas[0], t.betas[1]}, .eps = t.eps, .weight_decay = t.weight_decay};
  options.format = format, options.seed = static_cast<uint64_t>(recipe.run.seed);
  return std::make_unique<const optim::ScheduleFree>(
      options, [schedule = recipe.lr_schedule](int64_t step) { return optim::learning_rate(schedule, step - 1); });
}

Made grouped(const recipe::Recipe& recipe, plan::StateFormat format, const net::Denoiser* model) {
  const auto make = [&](const recipe::Recipe::Train& train) {
    if (recipe::is_schedule_free(recipe)) return schedule_free(recipe, train, format);
    return kMakes[static_cast<size_t>(format.optimizer)](train, format, static_cast<uint64_t>(recipe.run.seed));
  };
  const recipe::ParameterKeys keys = recipe::parameter_keys(recipe);
  if (keys.groups.empty()) return make(recipe.train);
  check_internal(model, "job.optimiser", "groups of parameters are found in a model, and none is given");
  std::vector<Grouped::Group> groups;
  std::vector<std::string> patterns;
  for (const recipe::ParameterGroup& group : keys.groups) {
    recipe::Recipe::Train own = recipe.train;
    own.weight_decay = group.weight_decay.value_or(own.weight_decay);
    groups.push_back({make(own), group.factor});
    patterns.push_back(group.match);
  }
  return std::make_unique<const Grouped>(make(recipe.train), std::move(groups),
                                         models::parameter_groups(*model, patterns));
}

}  // namespace

std::unique_ptr<const net::UnitUpdate> optimiser_of(const recipe::Recipe& recipe, plan::StateFormat format,
                                                    const net::Denoiser* model) {
  Made made = grouped(recipe, format, model);
  if (!format.ema || recipe::is_schedule_free(recipe)) return made;
  const optim::AverageOptions average{recipe.train.ema > 0 ? recipe.train.ema : optim::AverageOptions{}.decay,
                                      recipe.train.ema_after, recipe.train.ema_power, recipe.train.ema_inv_gamma,
                                      recipe.train.ema_min_decay};
  return std::make_unique<const optim::Averaged>(std::move(made), average, format.masters);
}

}  // namespace tessera::job
