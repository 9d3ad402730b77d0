#pragma once
// The mean squared error of a prediction and its gradient, over the tokens of a sample that this rank has.
//
//   loss += share * sample_error(prediction, batch, s, target, share, gradient).value();
#include "tessera/net/model.h"
#include "tessera/ops/kernels.h"

namespace tessera::diffusion {

/// The target of a sample's prediction: rows [.., C] in its layout, beginning at token `first`.
struct Target {
  at::Tensor rows;
  int64_t first = 0;
};

/// Rows [begin, end) of this rank's tensors that are predictions of sample `s`; empty if other ranks have them.
std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s);

/// The mean squared error of sample `s` of a batch: this rank's part of the mean over all of the sample's predictions. The
/// gradient is that of `scale` times the error and has the shape of the whole `prediction`; rows of frames of weight 0 are
/// left as they are. All of it stays where the prediction is, and the host waits for nothing.
ops::SampleError sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target,
                              double scale, const at::Tensor& gradient, const std::vector<double>& frame_weights = {});

}  // namespace tessera::diffusion
