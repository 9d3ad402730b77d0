#pragma once
// A sample of a training step: its timestep, noise and target velocity, drawn by (seed, step, position) alone, so that
// every mesh trains on the same numbers.
//
//   TrainingSample s = noised(settings, conditions, {latent, context, extra}, step, place);
#include <map>
#include <memory>
#include <string>

#include "tessera/diffusion/flow.h"
#include "tessera/net/model.h"

namespace tessera::diffusion {

struct TrainingSample {
  net::Sample input;    ///< noisy latent and other inputs of the model
  at::Tensor velocity;  ///< [C, F, H, W], the target
  double weight = 1;    ///< of the sample's loss
  int64_t index = 0;    ///< index in the data set
};
/// The samples of a step in host memory, by position in the global batch.
using TrainingSamples = std::map<int64_t, std::shared_ptr<const TrainingSample>>;

/// A sample as stored in the data set.
struct CleanSample {
  at::Tensor latent;   ///< [C, F, H, W] fp32
  at::Tensor context;  ///< [n, D] fp32
  std::map<std::string, at::Tensor> extra = {};
};

/// Bytes of the sample's tensors.
int64_t host_bytes(const TrainingSample& sample);

struct NoiseSettings {
  uint64_t seed = 0;
  Options timesteps = {};
  /// share of samples that begin with a clean frame, for models that support it (net::Conditions)
  double image_share = 0;
  double caption_dropout = 0;    ///< share of samples whose context is replaced by that of an empty caption:
  at::Tensor null_context = {};  ///< [n, D] fp32; needed for a share above 0
  double pooled_dropout = 0;     ///< likewise of extra "pooled", by a draw of its own:
  at::Tensor null_pooled = {};   ///< [D] fp32
};

TrainingSample noised(const NoiseSettings& settings, const net::Conditions& conditions, const CleanSample& clean,
                      int64_t step, int64_t place);

}  // namespace tessera::diffusion
