#pragma once
// One [[stage]] of a recipe: keys that have other values from a step on.
//
//   changes_text(stage);                                            // "data.frames = 33, train.global_batch = 8"
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/options.h"

namespace tessera::recipe {

/// Keys that have other values from step `from` on, until a later stage changes them again.
struct Stage {
  int64_t from = 0;
  Values changes;
};

/// "[[stage]] from = 100 ..." for each, as the resolved recipe has it.
std::string stages_toml(const std::vector<Stage>& stages);
/// "data.frames = 33, train.global_batch = 8": the changes in one line.
std::string changes_text(const Stage& stage);

}  // namespace tessera::recipe
