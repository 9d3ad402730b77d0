#pragma once
// The mean error of a prediction and its gradient, over the tokens of a sample that this rank has.
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

/// How the error's c follows the timestep, as in sd-scripts and SimpleTuner.
enum class HuberSchedule {
  constant,
  exponential,  ///< c^t, from 1 on the clean side down to c
  snr,          ///< (1 - c) / (1 + s)^2 + c with s = sqrt((1 - t) / (t + 0.0001))
};
HuberSchedule huber_schedule_of(const std::string& name);  ///< one of its names above
/// What the loss of a run is.
struct LossRule {
  ops::ErrorForm form = {};
  HuberSchedule schedule = HuberSchedule::constant;
  double scale = 1;  ///< multiplies c
  /// The form for a sample of timestep `t`, 0 to 1000.
  ops::ErrorForm at(double t) const;
};

/// The mean error of sample `s` of a batch: this rank's part of the mean over all of the sample's predictions. The
/// gradient is that of `scale` times the error and has the shape of the whole `prediction`; rows of frames of weight 0 are
/// left as they are. All of it stays where the prediction is, and the host waits for nothing.
ops::SampleError sample_error(const at::Tensor& prediction, const net::Batch& batch, size_t s, const Target& target,
                              double scale, const at::Tensor& gradient, const std::vector<double>& frame_weights = {},
                              const ops::ErrorForm& form = {});

}  // namespace tessera::diffusion
