#pragma once
// Adafactor (Shazeer and Stern, 2018, https://arxiv.org/abs/1804.04235) as in transformers: second moments of rows and
// columns, updates clipped by their root mean square; a first moment, of the updates times their rate, on request.
//
//   Adafactor adafactor({.relative_step = true, .scale_parameter = true});
#include <array>

#include "tessera/net/unit_update.h"
#include "tessera/optim/clipped.h"

namespace tessera::optim {

struct AdafactorOptions {
  std::array<double, 2> eps = {1e-30, 1e-3};  ///< added to squared gradients; the least root mean square of a parameter
  double clip_threshold = 1, decay_rate = -0.8, weight_decay = 0;
  bool relative_step = false;    ///< the learning rate is at most 1 / sqrt(t)
  bool warmup_init = false;      ///< ... and at most 1e-6 t
  bool scale_parameter = false;  ///< the learning rate is multiplied by the root mean square of the parameter
  double beta1 = 0;              ///< of the first moment, where the format has one
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
  double rate(const net::StepControl& control) const;

  AdafactorOptions options_;
};

}  // namespace tessera::optim
