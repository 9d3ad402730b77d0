#pragma once
// Latents as rows of patches whose last row and column may reach over the edge, and where the tokens of a latent are.
//
//   fill_input(rows, latent, patch);                         // rows [f * h * w, C * p * p], which are zero before
//   fill_output(rows, target, patch);                        // rows [f * h * w, p * p * C or more], channel fastest
#include <array>
#include <cstdint>

#include "tessera/ops/tensor.h"

namespace tessera::models::stdit {

/// Frames, rows and columns of the tokens of a latent [C, F, H, W].
std::array<int64_t, 3> grid_of(at::IntArrayRef latent, int64_t patch);
inline int64_t count_of(const std::array<int64_t, 3>& grid) { return grid[0] * grid[1] * grid[2]; }

/// A patch's places outside the latent keep what the rows have.
void fill_input(const at::Tensor& rows, const at::Tensor& latent, int64_t patch);
at::Tensor from_input(const at::Tensor& rows, at::IntArrayRef latent, int64_t patch);

/// The latent's channels are the first of each place.
void fill_output(const at::Tensor& rows, const at::Tensor& latent, int64_t patch);
at::Tensor from_output(const at::Tensor& rows, at::IntArrayRef latent, int64_t patch);

}  // namespace tessera::models::stdit
