#pragma once
// Model FLOPs utilisation (MFU): the FLOP/s of a step in relation to the peak of the devices.
//
//   ModelFlops flops(model);
//   const double done = samples * flops.of_sample(latent, plan, rank);            // of this rank in the step
//   if (const auto peak = peak_flops(machine, on_gpu, threads)) mfu = done / (seconds * *peak);           // 0.41
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tessera/net/model.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/simulate/cost.h"

namespace tessera::train {

/// Counts what a forward and a backward of the model take: matrix products and attention. What recompute repeats, and
/// gradients that nobody needs (of frozen weights, before the first trained unit), do not count.
class ModelFlops {
 public:
  /// The model must outlive this object.
  explicit ModelFlops(const net::Denoiser& model) : model_(model) {}

  /// What `rank` does of one sample with a latent of [C, F, h, w]: the units of its pipeline stages, an even share of
  /// the tokens. Each shape is counted once, on meta tensors.
  double of_sample(const std::array<int64_t, 4>& latent, const plan::Plan& plan, int rank);

 private:
  const net::Denoiser& model_;
  std::map<std::array<int64_t, 4>, std::vector<double>> by_unit_;
};

/// FLOP/s that a rank can do: the profile's rate of products in the dtype that the plan computes in. The stand-in
/// profile "cpu" has the rate of one thread: a rank has `threads` of them. Nothing where no rate is known: of a GPU with
/// that profile, or of a profile without the dtype.
std::optional<double> peak_flops(const plan::Machine& machine, bool on_gpu, int threads);

}  // namespace tessera::train
