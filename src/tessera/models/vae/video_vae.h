#pragma once
// A video autoencoder with a Gaussian posterior and published scaling, made from a file of weights.
//
//   WeightSource weights = ...;                                    // names and shapes first, values on demand
//   std::unique_ptr<VideoVae> vae = make_vae(config_json, "vae/config.json", weights, {});   // models/registry.h
//   Posterior p = vae->posterior(pixels);                          // unscaled
//   Tensor latent = vae->encode(pixels);                           // (p.mean - m) / s: what a denoiser trains on
//   vae->release();                                                // no byte of its weights is left
//
// Weights are read at the first encode() or decode(), and again after release(): a frozen encoder takes memory only in
// the phases that use it.
#include <functional>
#include <memory>

#include "tessera/models/common/weight_form.h"
#include "tessera/models/vae/tiles.h"
#include "tessera/models/vae/vae_weights.h"
#include "tessera/net/model.h"
#include "tessera/plan/simulate/work.h"

namespace tessera::models {

using at::Tensor;

struct ClipSize {
  int64_t frames = 0, height = 0, width = 0;
};

/// Throws UserError (usage) with the clip's size, the rule that it breaks, and the nearest smaller size that is valid.
[[noreturn]] void refuse_size(const char* where, const ClipSize& clip, const std::string& rule,
                              const ClipSize& nearest);

/// Throws UserError (input) where these are not pixels [3, F, H, W].
void check_pixels(const at::Tensor& pixels);

/// Throws UserError (input) where this is not a latent [channels, f, h, w] that has a cell.
void check_latent(const at::Tensor& latent, int64_t channels);

/// Bytes as numbers in [-1, 1]; numbers as they are. fp32.
Tensor in_range(const Tensor& pixels);

/// The distribution of the latent given the pixels, both [C, f, h, w]; the logarithm is not clamped, and undefined for
/// an autoencoder without a distribution.
struct Posterior {
  Tensor mean, log_variance;
};

/// Calls `run` and returns the peak bytes of its meta tensors.
using CountBytes = std::function<int64_t(const std::function<void()>& run)>;

/// Pixels are [3, F, H, W], fp32 in [-1, 1] or bytes 0 .. 255. Bytes become numbers a chunk at a time, so that the
/// memory of encode() does not grow with the length of the clip. Pixels and latents lie in host memory; weights and the
/// work of a chunk or tile on the process's device.
class VideoVae : public net::VideoCodec {
 public:
  virtual Posterior posterior(const Tensor& pixels) const = 0;
  virtual const Tensor& latent_mean() const = 0;  ///< [C], the m of the scaling
  virtual const Tensor& latent_std() const = 0;   ///< [C], its s
  virtual int64_t weight_bytes() const = 0;       ///< while they are loaded
  virtual void release() const = 0;               ///< frees the weights until they are needed again
  /// Peak bytes of tensors in encode() of such a clip, given as bytes, or in decode() of its latent: with the result,
  /// without weights, input and scratch memory of LibTorch's kernels.
  virtual int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const = 0;
  virtual int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const = 0;
  /// The work of encode() of such a clip, of all tiles and chunks: each convolution and projection a product, an
  /// attention by its site; what is applied to each channel alone is streamed, depthwise convolutions too.
  virtual plan::UnitWork encode_work(int64_t frames, int64_t height, int64_t width) const = 0;
  /// Whether it codes all frames of a clip at once, so that Tiling::frames bound its memory.
  virtual bool tiles_in_time() const { return false; }
  /// Latent frames of a piece of a clip that begins with the last frame of the piece before; 0: no frame is coded twice.
  virtual int64_t overlapping_piece() const { return 0; }
};

/// An autoencoder of pictures, and over its latents one in time, each with a distribution. Means are used throughout;
/// this is for noise that is given (golden cases), of any number of frames.
class TwoStageVae : public VideoVae {
 public:
  /// Mean and log variance of each picture, [3, F, H, W] -> [2c, F, h, w].
  virtual Tensor picture_moments(const Tensor& pixels) const = 0;
  virtual double picture_factor() const = 0;  ///< latents of pictures times it go into the second
  /// Those of the latent [c, F, h, w] -> [2C, f, h, w].
  virtual Tensor time_moments(const Tensor& pictures) const = 0;
  /// A denoiser's latent to so many frames, of those that have as many latent frames.
  virtual Tensor decode_frames(const Tensor& latent, int64_t frames) const = 0;
};

/// A released autoencoder by name, to plan with and to try things out: its sizes, with random weights.
struct AutoencoderPreset {
  std::string name;
  std::unique_ptr<VideoVae> (*make)(const Tiling& tiling);
};

/// A row of the registry.
struct AutoencoderMake {
  std::vector<WeightForm> weights;
  /// `config` is the JSON text of the official or of diffusers' config.json; empty: sizes follow from the weights.
  /// Throws UserError (input) for another kind of autoencoder, a missing tensor or another shape.
  std::unique_ptr<VideoVae> (*make)(const std::string& config, const std::string& config_file,
                                    const WeightSource& weights, const Tiling& tiling);
  /// Pixels that neighbouring tiles of this side share where nobody says how many.
  int64_t (*usual_overlap)(int64_t tile);
  /// Kinds of golden cases of pictures: in.image* [B, 3, H, W], in.z* [B, C, h, w] unscaled, out.latent*, out.decoded*.
  std::vector<std::string> picture_cases = {};
  /// And of clips: in.*video*, in.*z* [B, C, f, h, w], out.*moments, out.*decoded (tools/verify/clips.cpp).
  std::vector<std::string> clip_cases = {};
  std::vector<AutoencoderPreset> presets = {};
};

}  // namespace tessera::models
