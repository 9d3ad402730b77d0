#pragma once
// The text of a recipe's stages.
//
//   changes_text(stage);                                            // "data.frames = 33, train.global_batch = 8"
#include <string>
#include <vector>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// "[[stage]] from = 100 ..." for each, as the resolved recipe has it.
std::string stages_toml(const std::vector<Stage>& stages);
/// "data.frames = 33, train.global_batch = 8": the changes in one line.
std::string changes_text(const Stage& stage);

}  // namespace tessera::recipe
