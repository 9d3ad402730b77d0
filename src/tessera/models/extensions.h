#pragma once
// Models that extend one of ours by further tensors, by how those begin.
#include <string>
#include <string_view>

namespace tessera::models {

/// "Wan VACE, ..." of "vace_blocks.0.after_proj.weight"; empty for a tensor of no model that is known.
std::string extension_of(std::string_view tensor);

}  // namespace tessera::models
