#pragma once
// Latents [C, F, H, W] as rows of patches and back: a convolution whose kernel is its stride is a linear on these rows.
//
//   Tensor rows = to_rows(latent, {1, 2, 2});             // [L, C * 4], tokens by frame, row, column
//   Tensor same = from_rows(rows, latent.sizes(), {1, 2, 2});
#include <array>

#include "tessera/net/model.h"

namespace tessera::models {

using Patch = std::array<int64_t, 3>;  ///< frames, height, width

/// The channel is the slowest dimension of a row, as in a convolution's weight. Sizes must be multiples of the patch's.
at::Tensor to_rows(const at::Tensor& latent, const Patch& patch);
/// The same into rows that are there.
void fill_rows(const at::Tensor& rows, const at::Tensor& latent, const Patch& patch);
/// Copies a caption's rows. On meta, where a plan asks for sizes alone, there are none and `rows` stay as they are.
inline void copy_caption(const at::Tensor& rows, const at::Tensor& caption) {
  if (!caption.is_meta()) rows.copy_(caption);
}
at::Tensor from_rows(const at::Tensor& rows, at::IntArrayRef latent_shape, const Patch& patch);

/// The channel is the fastest dimension of a row, as in the head's output.
at::Tensor to_output_rows(const at::Tensor& latent, const Patch& patch);
at::Tensor from_output_rows(const at::Tensor& rows, at::IntArrayRef latent_shape, const Patch& patch);

/// The latents, in fp32, of a batch whose samples are their patches one after the other: `out` is the head's.
std::vector<at::Tensor> unpack_rows(const at::Tensor& out, const net::Batch& batch, const Patch& patch);

/// Patches of a latent [C, F, H, W].
int64_t count_patches(const std::array<int64_t, 4>& latent, const Patch& patch);

}  // namespace tessera::models
