#pragma once
// Second moments that are kept as sums over rows and columns (Shazeer and Stern, 2018,
// https://arxiv.org/abs/1804.04235), over slices of flat shards. A slice may begin and end inside a row: the sums of a
// tensor are taken over all ranks ([Note: sums over tensors] of net/unit_update.h).
//
//   FactoredMoment second(slice, factors, "exp_avg_sq");
//   second.add(at, count, squares, sums);                    // round 0
//   second.take(slice.sums[0], beta2);                       // means, then the factors of 1 / sqrt(v)
//   second.divide(at, count, values, slice.sums[0]);         // values / sqrt(v)
#include "tessera/net/unit_update.h"
#include "tessera/plan/optimizers.h"

namespace tessera::optim {

class FactoredMoment {
 public:
  /// `kind`: of the states, without "_row" and "_col".
  FactoredMoment(const net::Slice& slice, const plan::Factors& factors, const std::string& kind)
      : slice_(slice),
        factors_(factors),
        rows_(slice.state<float>(kind + "_row")),
        columns_(slice.state<float>(kind + "_col")) {}

  /// Adds the values of elements [at, at + count) of the slice to the sums of their rows and columns.
  void add(int64_t at, int64_t count, const float* values, double* sums) const;
  /// Sums over the whole tensor: updates the states by their means, and leaves the factors in place of the sums.
  void take(float* sums, double beta) const;
  /// values *= row's factor * column's factor.
  void divide(int64_t at, int64_t count, float* values, const float* factors) const;

 private:
  template <class Each>
  void each_run(int64_t at, int64_t count, const Each& each) const;

  const net::Slice& slice_;
  const plan::Factors factors_;
  float *rows_, *columns_;
};

}  // namespace tessera::optim
