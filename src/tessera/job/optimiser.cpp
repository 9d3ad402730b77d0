#include "tessera/job/optimiser.h"

#include "tessera/optim/adafactor.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/averaged.h"
#include "tessera/optim/came.h"
#include "tessera/optim/lion.h"

namespace tessera::job {

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
      return std::make_unique<const optim::Lion>(
          optim::LionOptions{{t.betas[0], t.betas[1]}, t.weight_decay, format, seed});
    },
    [](const recipe::Recipe::Train& t, plan::StateFormat format, uint64_t seed) -> Made {
      optim::AdafactorOptions options;
      options.eps = {t.factored_eps[0], t.factored_eps[1]};
      options.weight_decay = t.weight_decay, options.relative_step = t.relative_step;
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
};

}  // namespace

std::unique_ptr<const net::UnitUpdate> optimiser_of(const recipe::Recipe& recipe, plan::StateFormat format) {
  Made made =
      kMakes[static_cast<size_t>(format.optimizer)](recipe.train, format, static_cast<uint64_t>(recipe.run.seed));
  if (!format.ema) return made;
  const optim::AverageOptions average{recipe.train.ema > 0 ? recipe.train.ema : optim::AverageOptions{}.decay,
                                      recipe.train.ema_after, recipe.train.ema_power};
  return std::make_unique<const optim::Averaged>(std::move(made), average, format.masters);
}

}  // namespace tessera::job
