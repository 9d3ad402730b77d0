#pragma once
// The mean squared error of a prediction, and its gradient, over the tokens that a rank has of a sample.
//
//   loss += share * sample_error(prediction, batch, s, target, share, gradient);
#include "tessera/net/model.h"

namespace tessera::diffusion {

/// What a sample's prediction is held against: rows [.., C] in its layout, from its token `first` on.
struct Target {
  at::Tensor rows;
  int64_t first = 0;
};

/// Rows [begin, end) of the tensors of the tokens here that are predictions of sample `s`; empty where others have
/// them.
std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s);

/// Mean of squares of prediction - target over one sample's rows, and its gradient times `scale` in place of
/// prediction's copy: gradient[i] = 2 (prediction - target) * scale / n. Shared with `verify`.
double mean_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient);

/// The same over the predictions of sample `s` of a batch: the mean over all of them, of which this rank has the part
/// of the tokens that are here. `gradient` is that of the whole of `prediction`.
double sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target, double scale,
                    const at::Tensor& gradient);

}  // namespace tessera::diffusion
