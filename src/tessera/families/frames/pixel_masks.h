#pragma once
// Which pixels of a clip are to be made, the others being given, as VideoX-Fun's trainers draw it: a kind for each clip,
// by weights, then its numbers.
//
//   const int kind = pixel_mask_kind(frames, u);
//   const std::vector<uint8_t> mask = pixel_mask(kind, {frames, height, width}, draws);      // 1: made, 0: given
//
// By number (and by name, in diffusion.pixel_masks), 0: a box in all frames; 1: everything; 2: all frames from the n-th on, n in 1..4; 3: the same without the last n; 4: a
// box in some frames in a row; 5: each pixel by itself; 6: a box of its own in each of some frames; 7, 8: an ellipse, a
// circle in the first frame, so that all other frames are given; 9: whole frames, each by itself.
#include <array>
#include <cstdint>
#include <functional>
#include <string>
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
/// Their names, in this order.
const std::vector<std::string>& pixel_mask_names();
/// The kind in whose share of these weights `u` falls; of a picture of those kinds that pictures have. `weights`: by name,
/// in place of the trainers' own.
int pixel_mask_kind(int64_t frames, double u, const std::vector<Weighted>& weights = {});

/// [frames * height * width]. Throws UserError (usage) for an unknown kind.
std::vector<uint8_t> pixel_mask(int kind, const ClipSizes& clip, const PixelDraws& draws);

/// How often VideoX-Fun's trainers draw what beside the mask.
struct ConditionShares {
  double nothing = 0.9;        ///< of masks that give nothing: y is zeros, not the latent of grey
  double first_frame = 0.4;    ///< of pictures that are a frame of the clip: its first one, the others share the rest
  double inpaint = 0.75;       ///< the clip itself is given outside of the mask, in place of what it is made from
  double photo = 0.25;         ///< a frame of the clip is the reference, in place of the row's pictures
  double no_references = 0.5;  ///< of clips that are given outside of a mask: without pictures
  double flip = 0.5;           ///< of the row's pictures, mirrored
  double previous = 0.25;      ///< the clip's first frame is given, as that of a window before
  double no_background = 0.1;  ///< no background is given

  bool operator==(const ConditionShares&) const = default;
};
const std::vector<std::string>& share_names();
/// The share of that name. Throws UserError (usage) for an unknown one.
double& share_of(ConditionShares& shares, const std::string& name);

/// What is drawn of a clip's conditions in training.
struct ConditionDraws {
  int64_t count = 0;  ///< of each clip, among which every sample has one; 0: nothing is drawn
  ConditionShares shares = {};
  std::vector<Weighted> masks = {};  ///< kinds by their weights; empty: the trainers' own
  bool on() const { return count > 0; }
};
/// Conditions that training may leave out, each by a share of its own.
const std::vector<std::string>& droppable_conditions();

}  // namespace tessera::families
