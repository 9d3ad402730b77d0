#pragma once
// What is wrong with footage and is seen from its pixels: hard cuts, black bars, frames that stand still, blackness.
//
//   Footage footage = look_at(decode_clip("a.mp4", {.frames = 81, .height = 480, .width = 832, .fps = 16}));
//   footage.cuts;                                          // {31}: another scene begins with frame 31
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/video.h"

namespace tessera::data {

struct Footage {
  int64_t frames = 0;
  std::vector<int64_t> cuts = {};  ///< frames with which another scene begins
  Edges bars = {};                 ///< black in every frame, as shares of height and width; none below 2 %
  int64_t repeated = 0;            ///< frames that are no different from the one before
  bool black = false;              ///< nothing is to be seen in any frame

  bool empty() const { return cuts.empty() && !bars.any() && repeated == 0 && !black; }
};

/// Looks at frames of one size, one after the other.
class FootageWatch {
 public:
  void add(const uint8_t* rgb, int height, int width);
  Footage footage() const;

 private:
  /// Rows or columns from one side of the picture that were black in every frame, with an edge behind them.
  struct Side {
    int run = -1;  ///< -1: no frame has been seen that is not black
    bool sharp = false;
    void see(int now, bool edge);
  };
  void look_for_bars(const uint8_t* rgb);
  int height_ = 0, width_ = 0;
  Footage found_;
  std::vector<float> cells_;   // mean colours of parts of the last frame
  std::vector<float> steps_;   // from each frame to the next, how far they moved
  std::vector<uint8_t> last_;  // the last frame
  std::array<Side, 4> sides_;  // top, bottom, left, right
};

Footage look_at(const Frames& frames);

/// Of a whole video at this rate (0: its own), in a small size and without its bars cut off.
Footage look_through(const Path& path, const VideoInfo& info, double fps, const Showing& showing);

}  // namespace tessera::data
