#pragma once
// Learning rates by step, computed as in common trainers. Pure arithmetic.
//
//   LrSchedule s{.name = "cosine", .lr = 2e-4, .total_steps = 60, .warmup_steps = 10};
//   learning_rate(s, i);                            // of step i, from 0 on
#include <cstdint>
#include <string>

namespace tessera::recipe {

/// Formulas by name: constant, constant_with_warmup, linear, cosine, cosine_with_restarts, polynomial (diffusers
/// get_scheduler); wsd (transformers); torch_linear_then_cosine (LinearLR then CosineAnnealingLR);
/// opensora_linear_warmup (Open-Sora 2.0); cosine_min (transformers' cosine with a minimum rate).
struct LrSchedule {
  std::string name = "constant";
  double lr = 0;
  int64_t total_steps = 1, warmup_steps = 0;
  double eta_min = 0;
  double num_cycles = 1, power = 1;
  int64_t stable_steps = 0, decay_steps = 0;
  double min_lr_ratio = 0;
  double start_factor = 0.01;
  double initial_lr = 1e-6;
};

/// Throws UserError (usage) for an unknown name.
double learning_rate(const LrSchedule& schedule, int64_t step);

}  // namespace tessera::recipe
