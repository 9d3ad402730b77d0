#include "tessera/job/optimiser.h"

#include "tessera/net/adapters.h"
#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/lion.h"

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

class WithRates final : public net::UnitUpdate {
 public:
  WithRates(std::unique_ptr<const net::UnitUpdate> optimiser, RateOf rate)
      : inner_(std::move(optimiser)), rate_(std::move(rate)) {}

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return inner_->states(param); }
  bool on_device() const override { return inner_->on_device(); }
  bool totals() const override { return inner_->totals(); }
  int rounds() const override { return inner_->rounds(); }
  int64_t sums(const plan::ParamSpec& param, int round) const override { return inner_->sums(param, round); }
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override {
    inner_->add_sums(slice, own(slice, control), round, sums);
  }
  void take_sums(const net::Slice& slice, const net::StepControl& control, int round) const override {
    inner_->take_sums(slice, own(slice, control), round);
  }
  void update(const net::Slice& slice, const net::StepControl& control) const override {
    if (rate_(*slice.spec) != 0) inner_->update(slice, own(slice, control));
  }

 private:
  net::StepControl own(const net::Slice& slice, net::StepControl control) const {
    control.lr *= rate_(*slice.spec);
    return control;
  }

  const std::unique_ptr<const net::UnitUpdate> inner_;
  const RateOf rate_;
};

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

}  // namespace

std::unique_ptr<const net::UnitUpdate> with_rates(std::unique_ptr<const net::UnitUpdate> optimiser, RateOf rate) {
  return std::make_unique<const WithRates>(std::move(optimiser), std::move(rate));
}

RateOf plus_rate(double ratio) {
  return [ratio](const plan::ParamSpec& param) { return param.name.ends_with(net::kLoraB) ? ratio : 1; };
}

std::unique_ptr<const net::UnitUpdate> optimiser_of(const recipe::Recipe& recipe, plan::StateFormat format) {
  Made made =
      kMakes[static_cast<size_t>(format.optimizer)](recipe.train, format, static_cast<uint64_t>(recipe.run.seed));
  if (recipe.lora.on && recipe.lora.plus_ratio != 1)
    made = with_rates(std::move(made), plus_rate(recipe.lora.plus_ratio));
  if (!format.ema) return made;
  const optim::AverageOptions average{recipe.train.ema > 0 ? recipe.train.ema : optim::AverageOptions{}.decay,
                                      recipe.train.ema_after, recipe.train.ema_power, recipe.train.ema_inv_gamma,
                                      recipe.train.ema_min_decay};
  return std::make_unique<const optim::Averaged>(std::move(made), average, format.masters);
}

}  // namespace tessera::job
