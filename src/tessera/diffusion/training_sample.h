#pragma once
// A sample of a training step: its timestep, noise and what it should be predicted as, drawn by (seed, step, place) alone,
// so that every layout trains on the same numbers.
//
//   TrainingSample s = noised(settings, conditions, {latent, context, extra}, step, place);
#include <map>
#include <memory>
#include <string>

#include "tessera/diffusion/flow.h"
#include "tessera/net/model.h"

namespace tessera::diffusion {

struct TrainingSample {
  net::Sample input;    ///< a noisy latent with what else the model takes
  at::Tensor velocity;  ///< [C, F, H, W]: what should be predicted
  double weight = 1;    ///< of its loss
  int64_t index = 0;    ///< in the data set
};
/// Those of a step in the host's memory, by place in the global batch.
using TrainingSamples = std::map<int64_t, std::shared_ptr<const TrainingSample>>;

/// As the data set has it.
struct CleanSample {
  at::Tensor latent;   ///< [C, F, H, W] fp32
  at::Tensor context;  ///< [n, D] fp32
  std::map<std::string, at::Tensor> extra = {};
};

/// Of its tensors.
int64_t host_bytes(const TrainingSample& sample);

struct NoiseSettings {
  uint64_t seed = 0;
  Options timesteps = {};
  double image_share = 0;  ///< of samples that begin with a clean frame, for models that may (net::Conditions)
};

TrainingSample noised(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                      int64_t step, int64_t place);

}  // namespace tessera::diffusion
