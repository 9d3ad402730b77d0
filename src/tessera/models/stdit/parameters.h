#pragma once
// The parameters of STDiT3's units in the order of their use, their initial values and their names in files.
//
// Ours are the names of its program, but that queries, keys and values are tensors of their own, which tensor
// parallelism can share: files hold them one after the other in one tensor (checkpoint/row_part.h).
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/stdit/config.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::models::stdit {

plan::UnitSpec stem_spec(const Config& config);
plan::UnitSpec block_spec(const Config& config, bool temporal, int64_t index);
plan::UnitSpec head_spec(const Config& config);

/// Its program's: Xavier for linears, 1 / sqrt(D) for the tables; zero for what the temporal blocks add to the picture
/// model, for the frame rate and for given frames.
Initial initial_values(const plan::ParamSpec& param, bool released);

/// Ours -> its program's files.
const std::vector<NamePattern>& official_names();

}  // namespace tessera::models::stdit
