#pragma once
// The 256 colours that show a clip best, and its pixels in them; what a .gif needs.
//
//   const Palette palette = choose_palette(clip);
//   std::vector<uint8_t> indices = palette.map(clip, 0);       // frame 0, H x W
#include <array>
#include <cstdint>
#include <vector>

#include "tessera/data/video.h"

namespace tessera::data {

class Palette {
 public:
  using Colour = std::array<uint8_t, 3>;
  explicit Palette(std::vector<Colour> colours);  ///< 1 to 256

  const std::vector<Colour>& colours() const { return colours_; }
  /// Nearest colours of frame `index`, with an ordered dither: a fixed pattern, so what stands still does not flicker.
  std::vector<uint8_t> map(const Frames& frames, int index) const;

 private:
  uint8_t nearest(int r, int g, int b) const;
  std::vector<Colour> colours_;
  std::vector<uint8_t> cells_;  ///< nearest colour of each 5-bit cell
  int spread_ = 0;              ///< height of the dither, in levels
};

/// Median cut over all pixels of all frames: the box of colours with the widest range, weighted by its pixels, is split
/// at the median until there are 256.
Palette choose_palette(const Frames& frames);

}  // namespace tessera::data
