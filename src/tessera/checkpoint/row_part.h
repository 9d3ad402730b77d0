#pragma once
// Tensors of ours that programs store together, as parts of one tensor, or with their rows in another order. Names say
// which part of the stored tensor is meant:
//
//   row_part("blocks.0.attn.qkv.1of3.weight");               // the second third of the rows of blocks.0.attn.qkv.weight
//   row_part("blocks.0.linear1.3-6of7.weight");              // the last four sevenths of its rows
//   row_part("blocks.0.linear2.1-4of5c.weight");             // the last four fifths of its columns
//   row_part("blocks.0.attn.qkv.0of3p128.weight");           // rows by heads of 128: see RowPart::pairs
//   weights.read_f32("blocks.0.attn.qkv.1of3.weight", ...);  // a WeightSet reads such names (weights.h)
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

struct RowPart {
  std::string whole;                       ///< the stored tensor
  int64_t first = 0, last = 1, count = 1;  ///< parts [first, last) of `count` equal ones
  bool columns = false;                    ///< of its columns; else of its rows
  /// Width of a head that is rotated by halves here and by neighbours there: row j < pairs/2 of a head is its row 2j in
  /// the file, row pairs/2 + j its row 2j + 1. 0: rows have the same order.
  int64_t pairs = 0;

  int64_t size() const { return last - first; }  ///< of `count`
};

/// Nothing for other names. The part stands before the last component of a name.
std::optional<RowPart> row_part(std::string_view name);
/// The inverse, for a stored tensor of whatever name.
std::string part_name(std::string_view whole, const RowPart& part);
/// The stored tensor of a name, which is the name itself where it is of no part.
std::string whole_name(std::string_view name);

/// The shape of a part of a stored tensor; nothing where that cannot be divided so.
std::optional<std::vector<int64_t>> part_shape(const RowPart& part, std::vector<int64_t> stored);
/// The shape of the stored tensor of which `shape` is that part.
std::vector<int64_t> stored_shape(const RowPart& part, std::vector<int64_t> shape);

/// Reads elements [begin, begin + count) of the part of a tensor that is stored in that shape. `read` brings a range of
/// the stored elements, of `element` bytes each.
using ReadRange = std::function<void(int64_t begin, int64_t count, void* to)>;
void read_part(const RowPart& part, const std::vector<int64_t>& stored, size_t element, int64_t begin, int64_t count,
               const ReadRange& read, void* to);
/// Writes a whole part to its place in the stored tensor.
void put_part(const RowPart& part, const std::vector<int64_t>& stored, size_t element, const void* from, void* whole);

}  // namespace tessera::checkpoint
