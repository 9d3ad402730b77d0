#pragma once
// What distillation asks of a denoiser beside its prediction, as units with its parameters: what goes from unit to unit has
// more tensors, so the engine plans, shards and sends such a network as it does any other.
//
//   const auto units = forward_mode(model);
//   Tensor rows = run(units, pack_moving(model, samples, directions));         // [T, 2 n]: prediction, its tangent
//   const auto units = up_to_blocks(model, {2, 8});
//   Tensor rows = run(units, model.pack(samples));                             // [T, 2 D]: what blocks 2 and 8 return
#include <set>

#include "tessera/net/model.h"

namespace tessera::net {

/// How a sample moves.
struct Direction {
  Tensor x;      ///< of the latent's shape
  double t = 0;  ///< on the scale of Sample::t
};

// In forward mode each unit computes its boundary tensors and their derivatives along a direction of the samples' latents
// and timesteps (ops/tangent.h).

/// The model outlives them. Throws UserError (usage) for a family that has no forward mode.
std::vector<std::unique_ptr<Unit>> forward_mode(const Denoiser& model);

/// What pack() makes of the samples, and behind its inputs the tangents of those that move.
Batch pack_moving(const Denoiser& model, const std::vector<Sample>& samples, const std::vector<Direction>& directions);

/// The units up to the last of these blocks, numbered from 0; the last of them returns the tokens of all, side by side in
/// the order of the blocks. The model outlives them. Throws UserError (usage) for a block that there is not.
std::vector<std::unique_ptr<Unit>> up_to_blocks(const Denoiser& model, const std::set<int64_t>& blocks);
/// The same as so many units as the model has, with frozen parameters: those behind the last of these blocks hand on what it
/// returns, so that a plan of the model runs them.
std::vector<std::unique_ptr<Unit>> frozen_up_to_blocks(const Denoiser& model, const std::set<int64_t>& blocks);

/// The units with frozen parameters, those whose products are in `compute` held in it where that is bf16. The model outlives
/// them.
std::vector<std::unique_ptr<Unit>> frozen(const Denoiser& model, DType compute);

}  // namespace tessera::net
