#pragma once
// Names of CLIP's image tower in transformers' CLIPVisionModel. Queries, keys and values are one tensor here and three
// there: see stored_parts in clip_vision.h.
#include "tessera/models/common/names.h"

namespace tessera::models::clip {

/// Official name -> name without "vision_model."; all but attn.to_qkv.
const std::vector<NamePattern>& hf_names();

}  // namespace tessera::models::clip
