#pragma once
// Names of DC-AE's tensors in efficientvit, which holds the three projections of an attention as rows of one tensor.
//
//   in_efficientvit("encoder.down_blocks.3.0.attn.to_k.weight");    // {"encoder.stages.3...qkv.conv.weight", 1, 3}
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::models::dc_ae {

/// Part `part` of the stored rows, which are `parts` equal ones.
struct StoredRows {
  std::string name;
  int64_t part = 0, parts = 1;
};

StoredRows in_efficientvit(std::string_view diffusers_name);

}  // namespace tessera::models::dc_ae
