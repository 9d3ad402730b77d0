#pragma once
// Adafactor (Shazeer and Stern, 2018, https://arxiv.org/abs/1804.04235) without first moment, as in transformers: second
// moments of rows and columns, updates clipped by their root mean square.
//
//   Adafactor adafactor({.relative_step = true});
#include <array>

#include "tessera/net/unit_update.h"
#include "tessera/optim/clipped.h"

namespace tessera::optim {

struct AdafactorOptions {
  std::array<double, 2> eps = {1e-30, 1e-3};  ///< added to squared gradients; the least root mean square of a parameter
  double clip_threshold = 1, decay_rate = -0.8, weight_decay = 0;
  /// The learning rate is min(lr, 1 / sqrt(t)) times the root mean square of the parameter.
  bool relative_step = false;
  plan::StateFormat format = {.optimizer = plan::Optimizer::adafactor};
  uint64_t seed = 0;  ///< key of stochastic rounding
};

class Adafactor final : public Clipped {
 public:
  explicit Adafactor(AdafactorOptions options)
      : Clipped(options.format, plan::Factoring::last_two), options_(options) {}

  void update(const net::Slice& slice, const net::StepControl& control) const override;
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override;

 private:
  Second second(const net::StepControl& control) const override;

  AdafactorOptions options_;
};

}  // namespace tessera::optim
