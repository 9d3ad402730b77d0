#pragma once
// Sizes of clips in messages of autoencoders.
#include <cstdint>
#include <string>

namespace tessera::models {

struct ClipSize {
  int64_t frames = 0, height = 0, width = 0;
};

/// Throws UserError (usage) with the clip's size, the rule that it breaks, and the nearest smaller size that is valid.
[[noreturn]] void refuse_size(const char* where, const ClipSize& clip, const std::string& rule,
                              const ClipSize& nearest);

}  // namespace tessera::models
