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
#include "tessera/models/vae/layer_runner.h"
#include "tessera/models/vae/tiles.h"
#include "tessera/net/model.h"

namespace tessera::models {

struct ClipSize {
  int64_t frames = 0, height = 0, width = 0;
};

/// Throws UserError (usage) with the clip's size, the rule that it breaks, and the nearest smaller size that is valid.
[[noreturn]] void refuse_size(const char* where, const ClipSize& clip, const std::string& rule,
                              const ClipSize& nearest);

/// Throws UserError (input) where these are not pixels [3, F, H, W].
void check_pixels(const Tensor& pixels);

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
  std::string fingerprint() const final;
  Tensor encode(const Tensor& pixels) const final;  ///< scaled
  Tensor decode(const Tensor& latent) const final;  ///< a scaled latent, to pixels that are not clamped
  Posterior posterior(const Tensor& pixels) const;
  const Tensor& latent_mean() const {
    return mean_;
  }                                                  ///< [C], the m of the scaling; of a first frame where they differ
  const Tensor& latent_std() const { return std_; }  ///< [C], its s
  int64_t weight_bytes() const { return weights_.bytes(); }  ///< while they are loaded
  void release() const { weights_.release(); }               ///< frees the weights until they are needed again
  /// Peak bytes of tensors in encode() of such a clip, given as bytes, or in decode() of its latent: with the result,
  /// without weights, input and scratch memory of LibTorch's kernels.
  virtual int64_t encode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const = 0;
  virtual int64_t decode_bytes(int64_t frames, int64_t height, int64_t width, const CountBytes& count) const = 0;
  /// The work of encode() of such a clip, of all tiles and chunks: each convolution and projection a product, an
  /// attention by its site; what is applied to each channel alone is streamed, depthwise convolutions too.
  plan::UnitWork encode_work(int64_t frames, int64_t height, int64_t width) const;
  /// Whether it codes all frames of a clip at once, so that Tiling::frames bound its memory.
  bool tiles_in_time() const { return usual_frames_ != nullptr; }
  /// Latent frames of a piece of a clip that begins with the last frame of the piece before; 0: no frame is coded twice.
  virtual int64_t overlapping_piece() const { return 0; }

 protected:
  /// What a denoiser's latents are: (latent - mean) / std, each [C, latent frames after which they repeat].
  struct Scaling {
    Tensor mean = {};  ///< undefined: 0
    Tensor std;
    /// What the reference multiplies by where it does not divide by std; made at each use, so that nothing more is kept.
    std::function<Tensor()> times = {};
  };

  /// What an autoencoder is made of.
  struct Parts {
    std::string name;                   ///< of the fingerprint
    std::vector<Tensor> settings = {};  ///< what changes latents beside weights and scaling, for the fingerprint
    Scaling scaling;
    std::vector<Parameter> parameters;
    ReadWeight read;  ///< called for every parameter each time that weights are needed and not loaded
    int64_t cell;     ///< pixels of a latent cell along a side
    Tiling tiling;    ///< UserError (usage) where tiles are not whole cells
    const char* usual_tiles = "256 pixels that share 64 are usual";
    int64_t cell_frames = 1;             ///< frames of a cell of a tile in time
    const char* usual_frames = nullptr;  ///< where it tiles in time
  };
  explicit VideoVae(Parts parts);

  /// Mean and log variance [2C, f, h, w] of pixels, or latents [C, ...] of no distribution, unscaled.
  virtual Tensor moments(const Tensor& pixels, LayerRunner& run) const = 0;
  /// Pixels of an unscaled latent.
  virtual Tensor pixels(const Tensor& unscaled, LayerRunner& run) const = 0;

  Tensor unscaled(const Tensor& latent) const;

  // Tiles of clips and latents, in height and width; `run` is also given the tile's place in latent cells.
  using RunTile = std::function<Tensor(const Tensor& tile, const Part& y, const Part& x)>;
  Tensor encode_tiles(const Tensor& clip, const RunTile& run) const;
  Tensor decode_tiles(const Tensor& latent, const RunTile& run) const;
  /// The largest, in cells of a grid of h x w, and in pixels.
  std::pair<int64_t, int64_t> largest_tile(int64_t h, int64_t w) const;
  std::pair<int64_t, int64_t> largest_tile_pixels(int64_t height, int64_t width) const;
  /// Of what runs on meta tensors: anything, or a list of layers over one clip or latent.
  int64_t counted(const CountBytes& count, const std::function<void(LayerRunner& run)>& pass) const;
  int64_t pass_bytes(const std::vector<Layer>& layers, const Tensor& clip, const CountBytes& count) const {
    return counted(count, [&](LayerRunner& run) { run.run(layers, clip); });
  }
  /// Bytes of stitching tiles, where each makes `numbers` fp32 numbers a cell; and with the largest tile's result.
  int64_t stitching_bytes(int64_t numbers, int64_t h, int64_t w) const {
    return applies(tiles_, h, w) ? stitched_bytes(tiles_, numbers, h, w) : 0;
  }

  int64_t tile_bytes(int64_t numbers, int64_t h, int64_t w) const {
    const auto [tile_h, tile_w] = largest_tile(h, w);
    return 4 * numbers * tile_h * tile_w + stitching_bytes(numbers, h, w);
  }

  const WeightsOnDemand weights_;
  const int64_t cell_;
  const TileGrid tiles_;            // in latent cells
  const StitchedTiles time_tiles_;  // of `cell_frames`; size 0 where it does not tile in time

 private:
  const std::string name_;
  const std::vector<Tensor> settings_;
  const Scaling scaling_;
  const int64_t cell_frames_;
  const char* const usual_frames_;
  const Tensor std_, mean_;          // [C]
  mutable std::string fingerprint_;  // once known
};

/// A meta tensor, to count a pass.
inline Tensor on_meta(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
}
/// A quarter of a tile, in whole cells.
template <int64_t kCell>
int64_t quarter_of_tile(int64_t tile) {
  return tile / 4 / kCell * kCell;
}
/// What a result is written to: in host memory, or on meta as `like`.
inline Tensor empty_result(at::IntArrayRef sizes, const Tensor& like) {
  return like.is_meta() ? on_meta(sizes) : at::empty(sizes, at::kFloat);
}
/// In host memory, or on meta as it is.
inline Tensor on_host(const Tensor& x) { return x.is_meta() ? x : x.cpu(); }
/// fp32 [n, 1], for a Scaling.
Tensor constants(const std::vector<double>& values);

/// The latent [channels, 1 + n, h, w] of 1 + `time` n frames, sides of whole cells. Throws UserError (usage) for other
/// clips, naming the nearest.
std::array<int64_t, 4> causal_latent(int64_t channels, int64_t time, int64_t cell, const ClipSize& clip);

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

 protected:
  using VideoVae::VideoVae;
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
