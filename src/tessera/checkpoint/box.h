#pragma once
// Boxes of a tensor (what tensor parallelism cuts) and the contiguous runs that two of them share.
//
//   Box mine = {{0, 4}, {0, 8}}, theirs = {{2, 6}, {0, 8}};
//   for_each_run(mine, theirs, [&](int64_t at_mine, int64_t at_theirs, int64_t length) { ... });   // (16, 0, 16)
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/dtype.h"

namespace tessera::checkpoint {

using Box = std::vector<std::pair<int64_t, int64_t>>;  ///< [first, last) of each dimension

Box whole_box(const Shape& shape);
int64_t volume(const Box& box);
bool fits(const Box& box, const Shape& shape);  ///< same rank, and within the tensor
bool overlap(const Box& a, const Box& b);       ///< share an element
std::string box_text(const Box& box);           ///< "[0:4, 0:8]"

/// Calls `run(flat index in a, flat index in b, length)` for the longest row-major runs of what a and b share.
void for_each_run(const Box& a, const Box& b, const std::function<void(int64_t, int64_t, int64_t)>& run);

}  // namespace tessera::checkpoint
