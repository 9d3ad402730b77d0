#pragma once
// An exponential moving average of the weights beside any optimiser, as diffusers' EMAModel keeps it: one fp32 value more
// for each trained element, among the states, so it is offloaded, saved and resumed as they are.
//
//   Averaged averaged(std::move(adamw), {.decay = 0.9999}, plan::Masters::fp32);
//   averaged.update(slice, control);             // the optimiser's update, then the average of its result
#include <memory>

#include "tessera/net/unit_update.h"

namespace tessera::optim {

struct AverageOptions {
  double decay = 0.9999;  ///< the most it becomes
  int64_t after = 0;      ///< steps without an average: it is a copy until then
  double power = 0;       ///< 1 - (1 + s / inv_gamma)^-power in the s-th averaged step; 0: (1 + s) / (10 + s)
  double inv_gamma = 1;
  double least = 0;  ///< the least it is, once the average is no copy
};

/// The decay of a step, from 1: 0 in the first averaged one, so that the average begins as a copy.
double average_decay(const AverageOptions& options, int64_t step);

class Averaged final : public net::UnitUpdate {
 public:
  /// `optimiser` declares the average's state (StateFormat::ema). Masters in bf16 are not averaged: throws UserError
  /// (usage).
  Averaged(std::unique_ptr<const net::UnitUpdate> optimiser, AverageOptions options, plan::Masters masters);

  std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const override { return inner_->states(param); }
  void update(const net::Slice& slice, const net::StepControl& control) const override;
  bool totals() const override { return inner_->totals(); }
  int rounds() const override { return inner_->rounds(); }
  int64_t sums(const plan::ParamSpec& param, int round) const override { return inner_->sums(param, round); }
  void add_sums(const net::Slice& slice, const net::StepControl& control, int round, double* sums) const override {
    inner_->add_sums(slice, control, round, sums);
  }
  void take_sums(const net::Slice& slice, const net::StepControl& control, int round) const override {
    inner_->take_sums(slice, control, round);
  }
  void direct(const net::Slice& slice, const net::StepControl& control) const override {
    inner_->direct(slice, control);
  }
  void transform(const plan::ParamSpec& param, const at::Tensor& matrix, const at::Tensor& work) const override {
    inner_->transform(param, matrix, work);
  }

 private:
  const std::unique_ptr<const net::UnitUpdate> inner_;
  const AverageOptions options_;
  const plan::Masters masters_;
};

}  // namespace tessera::optim
