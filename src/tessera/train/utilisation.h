#pragma once
// How much of what the devices can do a step made of: model FLOPs utilisation.
//
//   std::optional<double> mfu = model_flops_utilisation(spec, machine, tokens, seconds, world);     // 0.41
#include <cstdint>
#include <optional>

#include "tessera/plan/simulate/cost.h"

namespace tessera::train {

/// FLOPs of the model's forward and backward over `tokens` (what recompute adds does not count), a second, over the
/// profile's rate of products on `world` devices. Nothing where no rate is known: with the stand-in profile "cpu", or
/// one without the dtype.
std::optional<double> model_flops_utilisation(const plan::ModelSpec& spec, const plan::Machine& machine, int64_t tokens,
                                              double seconds, int world);

}  // namespace tessera::train
