#pragma once
// Parameters that programs store together (checkpoint/row_part.h), put together.
//
//   stored_together({{"blocks.0.attn.q.weight", q}, ...}, name);          // {"blocks.0.attn.qkv.weight", [q; k; v]}
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::models {

/// fp32 tensors under the names that `name` gives, parts of one tensor as that tensor, at the place of the first of
/// them.
std::vector<std::pair<std::string, at::Tensor>> stored_together(
    const std::vector<std::pair<std::string, at::Tensor>>& ours,
    const std::function<std::string(const std::string&)>& name);

}  // namespace tessera::models
