#pragma once
// What Adafactor and CAME share: a gradient divided by the root of its second moment, which is kept as sums over rows and
// columns where the tensor is factored, and clipped by its root mean square over the whole tensor (ops/factored.h).
//
// Rounds of sums: 0 the squared gradient by rows and columns, 1 the squares of the divided gradient.
#include "tessera/net/unit_update.h"
#include "tessera/ops/factored.h"
#include "tessera/plan/optimizers.h"

namespace tessera::optim {

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
  /// The slice with the sums that it has so far.
  ops::ClippedSlice clipped(const net::Slice& slice, const net::StepControl& control) const;
  /// Takes a round of sums over rows and columns into the states of `kind`, without "_row" and "_col".
  void take_means(const net::Slice& slice, const std::string& kind, float* sums, double beta) const;

 private:
  ops::FactoredPlace place(const net::Slice& slice) const;

  const plan::Optimizer optimizer_;
  const plan::Factoring factoring_;
  const plan::StatesOf states_;
};

}  // namespace tessera::optim
