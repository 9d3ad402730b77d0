#pragma once
// CAME (Luo et al., 2023, https://arxiv.org/abs/2307.02047), with which Sana trains: Adafactor's update with a first
// moment, each element scaled down where the updates differ from their mean.
//
//   Came came({.betas = {0.9, 0.999, 0.9999}, .eps = {1e-30, 1e-16}});
#include <array>

#include "tessera/net/unit_update.h"
#include "tessera/optim/clipped.h"

namespace tessera::optim {

class SliceRanges;

struct CameOptions {
  std::array<double, 3> betas = {0.9, 0.999, 0.9999};  ///< of the first moment, the second, the residual
  std::array<double, 2> eps = {1e-30, 1e-16};          ///< added to squared gradients; to squared residuals
  double clip_threshold = 1, weight_decay = 0;
  plan::StateFormat format = {.optimizer = plan::Optimizer::came};
  plan::Factoring factoring = plan::Factoring::matrices;  ///< last_two: came-pytorch
  uint64_t seed = 0;                                      ///< key of stochastic rounding
};

class Came final : public Clipped {
 public:
  explicit Came(CameOptions options) : Clipped(options.format, options.factoring), options_(options) {}

  void update(const net::Slice& slice, const net::StepControl& control) const override;
  /// Round 2: the squared residual by rows and columns.
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override;
  void take_sums(const net::Slice& slice, const net::StepControl& control, int round) const override;

 private:
  Second second(const net::StepControl& control) const override;
  ops::CameStep step(SliceRanges& ranges, const net::Slice& slice, const net::StepControl& control) const;

  CameOptions options_;
};

}  // namespace tessera::optim
