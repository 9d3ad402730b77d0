#include "tessera/train/utilisation.h"

namespace tessera::train {

std::optional<double> model_flops_utilisation(const plan::ModelSpec& spec, const plan::Machine& machine, int64_t tokens,
                                              double seconds, int world) {
  const auto rate = machine.profile.device.gemm.find(machine.dtype);
  const bool stand_in = machine.profile == plan::find_profile("cpu");
  if (stand_in || rate == machine.profile.device.gemm.end() || rate->second.top <= 0) return std::nullopt;
  if (spec.tokens <= 0 || seconds <= 0) return std::nullopt;
  double flops = 0;  // of the micro-batch that was measured
  for (const plan::UnitSpec& unit : spec.units) flops += unit.cost.forward_flops + unit.cost.backward_flops;
  const double done = flops * static_cast<double>(tokens) / static_cast<double>(spec.tokens);
  return done / (seconds * rate->second.top * world);
}

}  // namespace tessera::train
