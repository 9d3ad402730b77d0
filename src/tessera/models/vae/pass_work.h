#pragma once
// The work of an autoencoder's pass, added up layer by layer from the sizes of its maps. On meta tensors a pass replaces
// its convolutions by their shapes, so it shows bytes and no work.
//
//   PassWork pass(parameters(config));
//   pass.filter("encoder.conv_in", h * w);              // a convolution with so many cells in its result
//   plan::UnitWork work = pass.work();
#include <map>

#include "tessera/models/vae/weights_on_demand.h"
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

}  // namespace tessera::models
