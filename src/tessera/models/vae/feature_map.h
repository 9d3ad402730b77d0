#pragma once
// Feature maps [T, H, W, C] of autoencoders that look over time, and the layers that they share: 1x1x1 convolutions are
// products of matrices, the others need no copy into another layout. A convolution makes a chunk of frames at a time:
// what these read is normalised, enlarged and given its border, so that a pass needs the memory of two maps, or three
// where the channels change.
//
//   const MapLayers layers(weights, 32, 1e-6);
//   Tensor y = layers.conv("encoder.conv_in.conv", {x});                          // 3x3x3, causal
//   y = layers.conv("encoder.conv_out.conv", {y, layers.norm("encoder.conv_norm_out", y)});   // norm, SiLU, conv
#include <functional>

#include "tessera/net/plain_context.h"

namespace tessera::models {

using at::Tensor;

/// A norm over groups of channels as one product and one sum for each channel, [C]; undefined: none.
struct Affine {
  Tensor scale, shift;
};

/// What a convolution reads: a feature map, normalised and activated (SiLU), or with its cells repeated.
struct MapInput {
  enum class Time { kept, doubled, doubled_after_first };
  const Tensor& map;  // [T, H, W, C]
  Affine norm = {};
  bool doubled = false;  ///< rows and columns
  Time time = Time::kept;

  int64_t frames() const;
  int64_t height() const { return map.size(1) * (doubled ? 2 : 1); }
  int64_t width() const { return map.size(2) * (doubled ? 2 : 1); }
  /// Writes frame `i` of them to `to` [H, W, C].
  void copy_frame(int64_t i, const Tensor& to) const;
};

/// What lies around a map: frames in front of and behind it, rows and columns before and after.
struct Border {
  int64_t front = 2, behind = 0, before = 1, after = 1;
  bool repeats = false;  ///< the nearest cell again (of one row and column at most); else zeros
};

struct ConvForm {
  Border border = {};
  int64_t time_stride = 1, stride = 1;  ///< of frames; of rows and columns
  int64_t groups = 1;
};

inline constexpr int64_t kMapChunk = int64_t{8} << 20;  ///< numbers of the frames that a convolution makes at a time

/// The parameters of a residual block: norm, SiLU, conv, norm, SiLU, conv, added to the input, which goes through a
/// 1x1x1 convolution where `shortcut` names one.
struct ResidualNames {
  std::string norm1, conv1, norm2, conv2, shortcut;
};

/// The parameters of an attention of one head, added to its input.
struct AttentionNames {
  std::string norm, q, k, v, out;
};

class MapLayers {
 public:
  MapLayers(const net::WeightMap& weights, int64_t groups, double eps, int64_t chunk = kMapChunk)
      : weights_(weights), groups_(groups), eps_(eps), chunk_(chunk) {}

  const Tensor& weight(const std::string& name) const;
  /// A 1x1x1 convolution; the bias may be missing.
  Tensor linear(const std::string& site, const Tensor& x) const;
  /// Over each group of channels in all frames.
  Affine norm(const std::string& site, const Tensor& x) const;
  Affine norm(const std::string& site, const Tensor& x, double eps) const;

  /// A kernel [out, in of a group, (frames,) rows, columns]; the bias may be missing. `over`: a map of the result's shape
  /// that `in` reads, which becomes the result: the last frames are made first, and no later one reads them, so there is
  /// no border behind. On meta tensors it allocates the bytes of the same on a CPU, those of oneDNN included.
  Tensor conv(const std::string& site, const MapInput& in, const ConvForm& form = {}, const Tensor& over = {}) const;

  Tensor residual(const ResidualNames& names, const Tensor& x, const ConvForm& form = {}) const;

  /// Mixes values [1, 1, T * H * W, C] into the last argument, which has their shape.
  using Mix = std::function<void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to)>;
  Tensor attention(const AttentionNames& names, const Tensor& x, const Mix& mix) const;

 private:
  Tensor chunk(const Tensor& kernel, const Tensor& bias, const MapInput& in, const ConvForm& form, int64_t begin,
               int64_t count) const;

  const net::WeightMap& weights_;
  const int64_t groups_;
  const double eps_;
  const int64_t chunk_;
};

/// A clip [C, T, H, W] as a map, and back.
Tensor to_map(const Tensor& clip);
Tensor from_map(const Tensor& map);

}  // namespace tessera::models
