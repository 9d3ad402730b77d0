#pragma once
// What Adafactor and CAME share: a gradient divided by the root of its second moment, which is kept as sums over rows and
// columns where the tensor is factored, and clipped by its root mean square over the whole tensor.
//
// Rounds of sums: 0 the squared gradient by rows and columns, 1 the squares of the divided gradient.
#include "tessera/net/unit_update.h"
#include "tessera/plan/optimizers.h"

namespace tessera::optim {

// Second moments that are kept as sums over rows and columns (Shazeer and Stern, 2018,
// https://arxiv.org/abs/1804.04235), over slices of flat shards. A slice may begin and end inside a row: the sums of a
// tensor are taken over all ranks ([Note: sums over tensors] of net/unit_update.h).
//
//   FactoredMoment second(slice, factors, "exp_avg_sq");
//   second.add(at, count, squares, sums);                    // round 0
//   second.take(slice.sums[0], beta2);                       // means, then the factors of 1 / sqrt(v)
//   second.divide(at, count, values, slice.sums[0]);         // values / sqrt(v)

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

class Clipped : public net::UnitUpdate {
 public:
  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return states_(param); }
  int rounds() const override { return plan::row(optimizer_).rounds; }
  int64_t sums(const plan::ParamSpec& param, int round) const override {
    return plan::sums(optimizer_, factoring_, param, round);
  }
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override;
  void take_sums(const net::Slice& slice, const net::StepControl& control, int round) const override;

 protected:
  /// Of the second moment in a step.
  struct Second {
    double beta, eps, clip_threshold;
  };
  Clipped(plan::StateFormat format, plan::Factoring factoring)
      : optimizer_(format.optimizer), factoring_(factoring), states_(plan::states_of(format, factoring)) {}

  virtual Second second(const net::StepControl& control) const = 0;
  plan::Factors factors(const net::Slice& slice) const { return plan::factors_of(factoring_, *slice.spec); }
  /// The divided gradient of elements [at, at + count) of the slice. `moment`: the second moment of these elements after
  /// the step, where the tensor is not factored; null: not needed.
  void divided(const net::Slice& slice, const net::StepControl& control, int64_t at, int64_t count, float* out,
               float* moment) const;
  /// What it is multiplied by to be clipped; from round 1 on.
  float clip(const net::Slice& slice, const net::StepControl& control) const;

 private:
  const plan::Optimizer optimizer_;
  const plan::Factoring factoring_;
  const plan::StatesOf states_;
};

}  // namespace tessera::optim
