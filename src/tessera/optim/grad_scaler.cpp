#include "tessera/optim/grad_scaler.h"

#include <cmath>

#include "tessera/base/check.h"

namespace tessera::optim {

namespace {

void require(bool ok, const char* what, double found, const char* expected) {
  if (!ok)
    throw UserError(Exit::usage, "grad_scaler", std::string(what) + " = " + std::to_string(found),
                    std::string("expected ") + expected);
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), state_{options.init_scale, 0} {
  require(std::isfinite(options.init_scale) && options.init_scale > 0, "init_scale", options.init_scale,
          "a number over 0, for example 65536");
  require(options.growth_factor > 1, "growth_factor", options.growth_factor, "a factor over 1, for example 2");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", options.backoff_factor,
          "a factor between 0 and 1, for example 0.5");
  require(options.growth_interval > 0, "growth_interval", static_cast<double>(options.growth_interval),
          "a number of steps, for example 2000");
}

bool GradScaler::update(bool finite) {
  if (!finite) {
    state_.scale *= options_.backoff_factor;
    state_.growth_tracker = 0;
    return false;
  }
  if (++state_.growth_tracker == options_.growth_interval) {
    const float grown = state_.scale * options_.growth_factor;
    if (std::isfinite(grown)) state_.scale = grown;
    state_.growth_tracker = 0;
  }
  return true;
}

}  // namespace tessera::optim
