#pragma once
// The expert of each step. Two denoisers that each own a range of timesteps (Wan 2.2) train in alternating periods of a
// fixed number of optimiser steps. The expert of a period depends on the seed and its number only, so all ranks know it
// in advance without communication.
//
//   ExpertOrder order({.seed = 0, .period = 1, .experts = 2});
//   order.extend(1000, {0.4, 0.6});                 // the next 1000 steps, with the shares of the two experts
//   order.expert(17);                               // expert of step 17; steps count from 1
//   order.own_step(17);                             // number of that expert's steps up to step 17
#include <cstdint>
#include <vector>

namespace tessera::diffusion {

class ExpertOrder {
 public:
  struct Rule {
    uint64_t seed = 0;
    int64_t period = 1;  ///< optimiser steps of a period
    size_t experts = 1;
  };
  explicit ExpertOrder(const Rule& rule) : rule_(rule), taken_(rule.experts, 0) {}

  /// Appends steps in which each expert has its share of the periods; shares sum to 1. A period that began under other
  /// shares is completed first.
  void extend(int64_t steps, const std::vector<double>& shares);

  int64_t steps() const { return steps_; }
  size_t expert(int64_t step) const { return alone() ? 0 : order_.at(static_cast<size_t>(step - 1)).expert; }
  int64_t own_step(int64_t step) const { return alone() ? step : order_.at(static_cast<size_t>(step - 1)).own; }
  /// Steps that an expert has run after `step` steps of the run.
  int64_t done(size_t expert, int64_t step) const;

 private:
  struct Step {
    uint32_t expert;
    int64_t own;
  };
  bool alone() const { return rule_.experts == 1; }

  const Rule rule_;
  int64_t steps_ = 0;
  std::vector<Step> order_;     // empty for one expert, whose run may have any number of steps
  std::vector<int64_t> taken_;  // steps of each expert
};

}  // namespace tessera::diffusion
