#pragma once
// Models that extend one of ours by further tensors, by how those begin.
#include <string>
#include <string_view>

namespace tessera::models {

struct Extension {
  std::string_view begins;
  const char *model, *words;  ///< "wan-vace", and what it is in words
};

/// "wan-vace" of "vace_blocks.0.after_proj.weight"; null for a tensor of no model that is known.
const Extension* extension_of(std::string_view tensor);

}  // namespace tessera::models
