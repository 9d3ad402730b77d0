#pragma once
// train.lr_scale: how the learning rate follows the global batch.
//
//   const LrScale scale = lr_scale("sqrt", /*global_batch=*/64, /*base_batch=*/256);
//   lr *= scale.factor;                                          // 0.5; scale.text: "sqrt(64 / 256)"
#include <cstdint>
#include <string>

namespace tessera::recipe {

struct LrScale {
  double factor = 1;
  std::string text;  ///< the factor as it was made; empty for none
};

/// `rule`: none; linear, global_batch / base_batch (Goyal et al., 2017: with SGD); sqrt, its square root (Adam; Sana's
/// auto_lr with a base of 256); or a number, the factor itself. Throws UserError (usage) for anything else.
LrScale lr_scale(const std::string& rule, int64_t global_batch, int64_t base_batch);

}  // namespace tessera::recipe
