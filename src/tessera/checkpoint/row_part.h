#pragma once
// Tensors of ours that programs store together: equal parts of the rows of one tensor, by name.
//
//   row_part("blocks.0.attn.qkv.1of3.weight");               // the second third of the rows of blocks.0.attn.qkv.weight
//   weights.read_f32("blocks.0.attn.qkv.1of3.weight", ...);  // a WeightSet reads such names (weights.h)
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

struct RowPart {
  std::string whole;  ///< the stored tensor
  int64_t index = 0, count = 1;
};

/// Nothing for other names. The part stands before the last component of a name.
std::optional<RowPart> row_part(std::string_view name);
/// The inverse.
std::string part_name(std::string_view whole, int64_t index, int64_t count);

}  // namespace tessera::checkpoint
