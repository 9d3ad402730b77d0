#pragma once
// Which expert has which step. Two denoisers that each own a range of timesteps (Wan 2.2) learn in turns of some
// optimiser steps; whose a turn is follows from the seed and its number alone, so all ranks know it without a word and
// every one of them ahead of time.
//
//   Turns turns({.seed = 0, .length = 1});
//   turns.go_on(1000, {0.4, 0.6});                  // the next 1000 steps, with the shares of the two experts
//   turns.expert(17);                               // of step 17, from 1 on
//   turns.own_step(17);                             // how many of that expert's steps are done with it: from 1 on
#include <cstdint>
#include <vector>

namespace tessera::diffusion {

class Turns {
 public:
  struct Rule {
    uint64_t seed = 0;
    int64_t length = 1;  ///< optimiser steps of a turn
    size_t experts = 1;
  };
  explicit Turns(const Rule& rule) : rule_(rule), taken_(rule.experts, 0) {}

  /// Adds steps in which each expert has its share of the turns; shares sum to 1. A turn that began under other shares
  /// is led to its end.
  void go_on(int64_t steps, const std::vector<double>& shares);

  int64_t steps() const { return steps_; }
  size_t expert(int64_t step) const { return alone() ? 0 : order_.at(static_cast<size_t>(step - 1)).expert; }
  int64_t own_step(int64_t step) const { return alone() ? step : order_.at(static_cast<size_t>(step - 1)).own; }
  /// Steps that an expert has done after `step` of the run, 0 for none.
  int64_t done(size_t expert, int64_t step) const;

 private:
  struct Step {
    uint32_t expert;
    int64_t own;
  };
  bool alone() const { return rule_.experts == 1; }

  const Rule rule_;
  int64_t steps_ = 0;
  std::vector<Step> order_;     // empty for one expert: a run may have any number of steps
  std::vector<int64_t> taken_;  // steps of each expert
};

}  // namespace tessera::diffusion
