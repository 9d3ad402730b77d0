#include "tessera/train/utilisation.h"

#include "tessera/engine/work.h"
#include "tessera/plan/token_shares.h"

namespace tessera::train {

double ModelFlops::of_sample(const std::array<int64_t, 4>& latent, const plan::Plan& plan, int rank) {
  const auto [found, added] = by_unit_.try_emplace(latent);
  std::vector<double>& by_unit = found->second;
  if (added) {
    const plan::WorkTable work = engine::count_work(model_.units(), model_.pack({model_.blank(latent)}));
    for (const auto& unit : model_.units()) {
      const plan::UnitWork& of_unit = work.at(unit->spec().kind);
      by_unit.push_back(of_unit.forward_flops() + of_unit.backward_flops());
    }
  }
  double flops = 0;
  for (size_t unit = 0; unit < by_unit.size(); ++unit)
    if (plan.owns(rank, static_cast<int>(unit))) flops += by_unit[unit];
  return flops / plan::sequence_size(plan.mesh);
}

std::optional<double> peak_flops(const plan::Machine& machine, bool on_gpu, int threads) {
  const bool stand_in = machine.profile == plan::find_profile("cpu");
  const auto rate = machine.profile.device.gemm.find(machine.dtype);
  if ((stand_in && on_gpu) || rate == machine.profile.device.gemm.end() || rate->second.top <= 0) return std::nullopt;
  return rate->second.top * (stand_in ? threads : 1);
}

}  // namespace tessera::train
