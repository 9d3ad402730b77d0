#pragma once
// Which pixels of a clip are to be made, the others being given, as VideoX-Fun's trainers draw it: a kind for each clip,
// by weights, then its numbers.
//
//   const int kind = pixel_mask_kind(frames, u);
//   const std::vector<uint8_t> mask = pixel_mask(kind, {frames, height, width}, draws);      // 1: made, 0: given
//
// 0: a box in all frames; 1: everything; 2: all frames from the n-th on, n in 1..4; 3: the same without the last n; 4: a
// box in some frames in a row; 5: each pixel by itself; 6: a box of its own in each of some frames; 7, 8: an ellipse, a
// circle in the first frame, so that all other frames are given; 9: whole frames, each by itself.
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/families/frames/given_frames.h"

namespace tessera::families {

/// Random numbers, in the order in which a mask asks for them.
struct PixelDraws {
  std::function<int64_t(int64_t least, int64_t most)> whole;  ///< both ends included
  std::function<double()> real;                               ///< in 0..1
  /// `count` different ones of 0 .. of - 1, in some order.
  std::function<std::vector<int64_t>(int64_t of, int64_t count)> chosen;
  std::function<bool(int64_t pixel)> pixel;  ///< of kind 5, counted over the clip
};

struct ClipSizes {
  int64_t frames, height, width;
};

inline constexpr int kPixelMaskKinds = 10;
/// How often each kind is drawn, of a clip or of a picture.
const std::array<double, kPixelMaskKinds>& pixel_mask_weights(bool picture);
/// The kind in whose share of these weights `u` falls.
int pixel_mask_kind(int64_t frames, double u);

/// [frames * height * width]. Throws UserError (usage) for an unknown kind.
std::vector<uint8_t> pixel_mask(int kind, const ClipSizes& clip, const PixelDraws& draws);

/// The draws of the conditions of VideoX-Fun's trainers, and how often something is left out.
struct FunShares {
  static constexpr double kText = 0.1, kControl = 0.1, kStart = 0.1, kReference = 0.1, kClip = 0.1;
  static constexpr double kNothingGiven = 0.9;  ///< a mask that is all ones has y = 0 rather than the latent of grey
  static constexpr double kReferenceFirst =
      0.4;  ///< the reference is the clip's first frame; the others share the rest
};

}  // namespace tessera::families
