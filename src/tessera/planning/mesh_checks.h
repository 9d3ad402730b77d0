#pragma once
// What a mesh must divide, said before anything starts.
//
//   check_mesh(mesh, *job.model, job.latent);    // "sp = 3 does not divide the model's 40 heads: ... sp = 2 or sp = 4"
#include <array>

#include "tessera/base/mesh.h"
#include "tessera/net/model.h"
#include "tessera/plan/search/layouts.h"

namespace tessera::planning {

/// dp_shard takes what the other axes leave of the world. Throws UserError (usage) when it does not divide, or names an
/// axis this version cannot run.
Mesh fill_mesh(Mesh mesh, int world);

/// What bounds the meshes of a model; world and node are left to the caller. `latent` as below.
plan::LayoutBounds layout_bounds(const net::Denoiser& model, const std::array<int64_t, 4>& latent = {});

/// Throws UserError (usage) naming the nearest values that would do. `latent`: of one sample, [C, F, H, W], to see
/// whether there are tokens for all ranks; zeros: that is left to the first micro-batch.
void check_mesh(const Mesh& mesh, const net::Denoiser& model, const std::array<int64_t, 4>& latent = {});

}  // namespace tessera::planning
