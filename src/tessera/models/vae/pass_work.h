#pragma once
// The work of an autoencoder's pass, added up layer by layer from the sizes of its maps. On meta tensors a pass replaces
// its convolutions by their shapes, so it shows bytes and no work.
//
//   PassWork pass(parameters(config));
//   pass.filter("encoder.conv_in", h * w);              // a convolution with so many cells in its result
//   plan::UnitWork work = pass.work();
#include <map>

#include "tessera/models/vae/vae_weights.h"
#include "tessera/plan/simulate/work.h"

namespace tessera::models {

class PassWork {
 public:
  explicit PassWork(const std::vector<Parameter>& parameters);

  /// A convolution of any size, or a projection: the weight of `site` at each of `cells` cells.
  void filter(const std::string& site, int64_t cells);
  /// Operators that read and write so many fp32 numbers in all.
  void stream(int64_t numbers, int operators = 1);
  /// x + y of so many numbers.
  void add(int64_t numbers) { stream(3 * numbers); }
  /// An operator that changes each of so many numbers.
  void change(int64_t numbers) { stream(2 * numbers); }
  void attention(double flops) { work_.attention["vae"] += flops; }

  const plan::UnitWork& work() const { return work_; }

 private:
  std::map<std::string, std::vector<int64_t>> shapes_;
  plan::UnitWork work_;
};

/// The work of layers over a feature map of `frames` x `height` x `width` cells, as feature_map.h runs them. A layer that
/// makes another map says so by changing these.
struct MapWork {
  PassWork& pass;
  int64_t frames, height, width;

  int64_t cells() const { return frames * height * width; }
  /// Of `channels`, read into a map with a border.
  void conv(const std::string& site, int64_t channels) const;
  /// Statistics; applied and activated as a convolution reads.
  void norm(int64_t channels) const;
  /// Norm, conv, norm, conv, added to the input, which `shortcut` projects where the channels change.
  void residual(const std::string& conv1, const std::string& conv2, const std::string& shortcut, int64_t in,
                int64_t out) const;
  /// Norm, the four projections, products of so many pairs of cells, added to the input.
  void attention(const std::vector<std::string>& projections, double pairs, int64_t channels) const;
};

}  // namespace tessera::models
