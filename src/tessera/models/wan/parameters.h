#pragma once
// The parameters of a Wan denoiser's units in the order of their use, their initial values and their names in
// diffusers.
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/wan/config.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::models::wan {

plan::UnitSpec stem_spec(const Config& config);
plan::UnitSpec block_spec(const Config& config, int64_t index);
plan::UnitSpec head_spec(const Config& config);

/// Xavier for linears, zero head, N(0, 0.02) for the text and time embeddings: what the official code does. The last only
/// where the sizes are those of a release; else Initial::embedding.
Initial initial_values(const plan::ParamSpec& param, bool released);

/// Official name -> name in diffusers' WanTransformer3DModel.
const std::vector<NamePattern>& diffusers_names();

}  // namespace tessera::models::wan
