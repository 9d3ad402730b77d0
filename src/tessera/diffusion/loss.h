#pragma once
// The mean squared error of a prediction and its gradient, over the tokens of a sample that this rank has.
//
//   loss += share * sample_error(prediction, batch, s, target, share, gradient);
#include "tessera/net/model.h"

namespace tessera::diffusion {

/// The target of a sample's prediction: rows [.., C] in its layout, beginning at token `first`.
struct Target {
  at::Tensor rows;
  int64_t first = 0;
};

/// Rows [begin, end) of this rank's tensors that are predictions of sample `s`; empty if other ranks have them.
std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s);

/// Mean of squares of prediction - target over one sample's rows; writes gradient[i] = 2 (prediction - target) * scale
/// / n. Also used by `verify`.
double mean_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient);

/// The same where the tensors are: writes the sum of the squares to `sum`, [1] of fp64. The bits of an order of
/// ops::sum_of_squares.
void sum_squared_error(const at::Tensor& prediction, const at::Tensor& target, double scale, at::Tensor gradient,
                       const at::Tensor& sum);

/// What a sample's loss compares: rows of this rank's predictions and of the target.
struct Compared {
  int64_t begin = 0, count = 0, at = 0;  ///< first row of the prediction, number of rows, first row of the target
  double part = 0;                       ///< of all rows of the sample, times their weight
};
/// Runs of rows of one weight: one run without `frame_weights`, which are those of TrainingSample. Rows of weight 0 are
/// in none.
std::vector<Compared> compared(const net::Batch& batch, size_t s, const Target& target,
                               const std::vector<double>& frame_weights = {});

/// mean_squared_error for sample `s` of a batch: this rank's part of the mean over all of the sample's predictions. `gradient`
/// has the shape of the whole `prediction`; rows of frames of weight 0 are left as they are.
double sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target, double scale,
                    const at::Tensor& gradient, const std::vector<double>& frame_weights = {});

}  // namespace tessera::diffusion
