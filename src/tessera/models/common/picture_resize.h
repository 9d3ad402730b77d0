#pragma once
// Pictures of bytes in another size, to the byte as Pillow's Image.resize makes them (11.3): a filter that widens where the
// picture shrinks, rows first, then columns, each pass rounded to bytes.
//
//   at::Tensor small = resized(picture, 384, 384, Filter::bicubic);            // [H, W, C] -> [384, 384, C]
//   at::Tensor first = covering(picture, 480, 848);                            // by Lanczos, of whatever proportions
#include "tessera/ops/tensor.h"

namespace tessera::models {

enum class Filter { bicubic, lanczos };

/// `picture`: uint8 [H, W, C].
at::Tensor resized(const at::Tensor& picture, int64_t height, int64_t width, Filter filter);
/// The same in its own proportions until it covers that size, and the middle of it.
at::Tensor covering(const at::Tensor& picture, int64_t height, int64_t width);

}  // namespace tessera::models
