#pragma once
// The mean error of a prediction and its gradient, over the tokens of a sample that this rank has.
//
//   loss += share * sample_error(prediction, batch, s, target, share, gradient).value();
#include <array>
#include <string>
#include <vector>

#include "tessera/net/model.h"
#include "tessera/ops/kernels.h"

namespace tessera::diffusion {

/// The target of a sample's prediction: rows [.., C] in its layout, beginning at token `first`.
struct Target {
  at::Tensor rows;
  int64_t first = 0;
  at::Tensor weights = {};  ///< of the error of each of its values, in the same rows; undefined: 1 each
};

/// What of a clip counts in its loss, by a mask of it between 0 and 1.
struct MaskRule {
  bool on = false;         ///< samples have masks; one without trains whole
  bool inverted = false;   ///< what is black trains, not what is white
  double least = 0;        ///< weight of what does not train: least + (1 - least) m
  double unmasked = 0;     ///< weights below are raised to it
  double whole_share = 0;  ///< of samples that train whole all the same
  bool of_area = false;    ///< the loss of a sample is sum(m e) / sum(m), else mean(m e)
  bool operator==(const MaskRule&) const = default;
};

/// How far targets are moved away from what the model predicts without a caption: for bases that were distilled of their
/// guidance, whose plain targets would unlearn it.
struct Guidance {
  double low = 1, high = 1;  ///< s is drawn between them for each sample; 1: targets stay
  bool by_sigma = false;     ///< s becomes 1 + (s - 1) t
  bool zero = false;         ///< the prediction is first scaled to what it has of the target (CFG-Zero)
  double weight = 1;         ///< of the loss
  bool on() const { return low != 1 || high != 1; }
  /// s of a sample of timestep `t`, 0 to 1000, by its draw in [0, 1).
  double at(double draw, double t) const;
};
/// u + s (v - u) of a target v and the prediction u without a caption, both of one sample and of one shape.
at::Tensor guided_target(const at::Tensor& target, const at::Tensor& unguided, double s, bool zero);

/// Masks of pixels [n, H, W] on the grid of latents [n, h, w]; `way`: area, nearest, nearest_exact or bilinear.
at::Tensor on_grid(const at::Tensor& pixels, const std::string& way, int64_t height, int64_t width);
/// The mask [F, H, W] of a clip, or of all its frames [1, H, W], on the grid of its latent of shape [C, f, h, w]: means of
/// the frames that a latent frame stands for, of which the first stands for one where the autoencoder is causal.
at::Tensor latent_mask(const at::Tensor& frames, const std::string& way, const std::array<int64_t, 4>& latent);
/// What the errors of a latent's places [f, h, w] count. `frame_weights`: as sample_error() takes them; frames of weight 0
/// are no part of an area. A mask of nothing has the weights 0.
at::Tensor mask_weights(const at::Tensor& mask, const MaskRule& rule, const std::vector<double>& frame_weights = {});

/// Rows [begin, end) of this rank's tensors that are predictions of sample `s`; empty if other ranks have them.
std::pair<int64_t, int64_t> rows_here(const net::Batch& batch, size_t s);

/// Rows of a sample whose error has one weight, as sample_error() takes them: `count` from `begin` of this rank's, of which
/// `part` is their share of all predictions times the weight. Those without rows here or of weight 0 are missing.
struct WeighedRows {
  int64_t begin, count;
  double part;
};
std::vector<WeighedRows> weighed_rows(const net::Batch& batch, size_t s, const std::vector<double>& frame_weights);

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
  MaskRule masks = {};
  Guidance guidance = {};
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
