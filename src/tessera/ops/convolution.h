#pragma once
// Convolutions by LibTorch, as autoencoders and encoders have them. On a GPU cuDNN offers several ways of one, each with a
// workspace, and LibTorch takes the first whose workspace it is given: ours gives no more than a plan counts.
//
//   const Tensor y = ops::convolution(x, w, bias, {1, 1, 1}, {0, 1, 1});    // x [1, C, T, H, W], w [out, C / groups, ...]
#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// Of one, two or three dimensions, without dilation; `bias` may be undefined. Where every way wants more workspace than
/// cudnn_workspace(cudnn_setting()) (base/target.h), the first one that there is memory for.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, int64_t groups = 1);

}  // namespace tessera::ops
