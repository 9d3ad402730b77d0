#pragma once
// Fills in and checks a mesh before a run: its axes against the ranks, heads, features, units and tokens.
//
//   check_mesh(mesh, *job.model, job.latent);    // "sp = 3 does not divide the model's 40 heads: ... sp = 2 or sp = 4"
#include <array>

#include "tessera/base/mesh.h"
#include "tessera/net/model.h"
#include "tessera/plan/search/layouts.h"

namespace tessera::planning {

/// Sets dp_shard to the ranks that the other axes leave. Throws UserError (usage) if they do not divide the number of
/// ranks.
Mesh fill_mesh(Mesh mesh, int world);

/// Bounds of the meshes that a model allows; world and node are left to the caller. `latent` as below.
plan::LayoutBounds layout_bounds(const net::Denoiser& model, const std::array<int64_t, 4>& latent = {});

/// Throws UserError (usage) naming the nearest valid values. `latent`: of one sample, [C, F, H, W], to check that all
/// ranks have tokens; zeros: checked at the first micro-batch instead.
void check_mesh(const Mesh& mesh, const net::Denoiser& model, const std::array<int64_t, 4>& latent = {});

}  // namespace tessera::planning
