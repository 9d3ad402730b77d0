#pragma once
// What autoencoders refuse: clips of sizes that they do not take, and tensors that are none.
#include <cstdint>
#include <string>

#include "tessera/ops/tensor.h"

namespace tessera::models {

struct ClipSize {
  int64_t frames = 0, height = 0, width = 0;
};

/// Throws UserError (usage) with the clip's size, the rule that it breaks, and the nearest smaller size that is valid.
[[noreturn]] void refuse_size(const char* where, const ClipSize& clip, const std::string& rule,
                              const ClipSize& nearest);

/// Throws UserError (input) where these are not pixels [3, F, H, W].
void check_pixels(const at::Tensor& pixels);

/// Throws UserError (input) where this is not a latent [channels, f, h, w] that has a cell.
void check_latent(const at::Tensor& latent, int64_t channels);

}  // namespace tessera::models
