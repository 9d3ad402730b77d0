#pragma once
// The parameters of a Sana denoiser's units in the order of their use, their initial values and their names elsewhere.
//
// Ours are the names of NVlabs' program, but that queries, keys and values, and the two halves of the feed-forward, are
// tensors of their own, which tensor parallelism can share: files hold them one after the other in one tensor
// (checkpoint/row_part.h).
#include "tessera/models/common/initial.h"
#include "tessera/models/common/names.h"
#include "tessera/models/sana/config.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::models::sana {

plan::UnitSpec stem_spec(const Config& config);
plan::UnitSpec block_spec(const Config& config, int64_t index);
plan::UnitSpec head_spec(const Config& config);

/// Xavier for linears, 1 / sqrt(D) for the tables, N(0, 0.02) for the embeddings: those of NVlabs' program. The last only
/// where the sizes are those of a release; else Initial::embedding.
Initial initial_values(const plan::ParamSpec& param, bool released);

/// Ours -> NVlabs' files.
const std::vector<NamePattern>& official_names();
/// Ours -> diffusers'; the classes of the three types differ in a few.
const std::vector<NamePattern>& diffusers_names(Type type);

}  // namespace tessera::models::sana
