#pragma once
// The published tables of aspect ratios, as data: PixArt's and those of the programs after it in diffusers' values, and
// Open-Sora 1.2's.
#include <cstdint>
#include <span>

namespace tessera::data {

/// A ratio of height to width as the tables name it, and sides in units of the table.
struct RatioRow {
  double ratio;
  int height, width;
};

struct RatioTable {
  const char* name;
  int unit;  ///< pixels
  std::span<const RatioRow> rows;
  int64_t area = 0;  ///< pixels that clips are held against; 0: those of its square
};

std::span<const RatioTable> ratio_tables();

}  // namespace tessera::data
