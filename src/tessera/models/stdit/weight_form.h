#pragma once
// The files of STDiT3 denoisers: released names, and config.json.
//
//   Family{.weights = weight_forms()};
//
// Ours are the names of its program, but that queries, keys and values are tensors of their own, which tensor
// parallelism can share: files hold them one after the other in one tensor (checkpoint/row_part.h).
#include "tessera/models/common/names.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models::stdit {

/// Ours -> its program's files.
const std::vector<NamePattern>& official_names();

std::vector<WeightForm> weight_forms();

}  // namespace tessera::models::stdit
