#pragma once
// Which latent frames of a clip are given without noise, as Open-Sora 1.2's and 1.3's trainers draw it: a kind for each
// clip, by ratios, then the frames.
//
//   const std::string kind = masked_by({{"image_head", 0.1}, {"random", 0.05}}, u);  // "identity": the rest, none given
//   const std::vector<char> noised = frame_mask(kind, 15, draws);                    // 0: given, 1: noised and trained
//
// random: each frame by itself, a share of 0.1 to 0.9 of them; interpolate: every second one; quarter_random,
// quarter_head, quarter_tail, quarter_head_tail: 1 to a quarter of the frames in a row, somewhere, at the begin, at the
// end, at both; image_random, image_head, image_tail, image_head_tail: likewise one frame. A clip of less than four frames
// has a quarter of one. Pictures have none. At least one frame is trained: where a kind gives all of them, the last.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/families/frames/given_frames.h"

namespace tessera::families {

/// Random numbers, in the order in which a mask asks for them.
struct MaskDraws {
  std::function<int64_t(int64_t least, int64_t most)> whole;  ///< both ends included
  std::function<double(double least, double most)> real;
  std::function<double(int64_t frame)> of_frame;  ///< in 0..1, of the kind random
};

/// Without identity, in the order of the table.
std::vector<std::string> mask_kinds();
/// "intepolate", as its programs spell it, is interpolate. Throws UserError (usage) for an unknown kind.
std::string mask_kind(const std::string& name);

/// The first kind for which `u` is below the sum of the ratios up to it, else identity.
std::string masked_by(const std::vector<Weighted>& ratios, double u);

/// 1 for each frame that is noised. Throws UserError (usage) for an unknown kind.
std::vector<char> frame_mask(const std::string& kind, int64_t frames, const MaskDraws& draws);
/// The same where all may be given: 1.2 leaves one only where the kind is random.
std::vector<char> frame_mask_of_1_2(const std::string& kind, int64_t frames, const MaskDraws& draws);

/// 1.3's kinds of frames that are given beside the noisy ones, in the order of the table.
std::vector<std::string> beside_kinds();
/// "i2v", as its program calls it as well, is i2v_head. Throws UserError (usage) for an unknown kind.
std::string beside_kind(const std::string& name);
/// How a recipe writes them, for help.
std::string beside_examples();
/// 1 for each latent frame that is given: i2v_head, i2v_tail, i2v_loop as above, v2v_head and v2v_head_noisy the first
/// half, v2v_tail the second, other and other_noisy: some at either end, none. Throws UserError (usage) for an unknown
/// kind.
std::vector<char> frames_beside(const std::string& kind, int64_t frames, const MaskDraws& draws);
/// Whether the frames that a kind gives, the first one among them, have some noise: `kind` says so.
bool gives_noisy(const std::string& kind, const std::vector<char>& given);
/// Whether one of these kinds may, by its weight.
bool any_noisy(const std::vector<Weighted>& kinds);
/// Whether one of them gives any frame.
bool any_beside(const std::vector<Weighted>& kinds);
/// Frames of such a clip that are given by the kind that parts the clip most often into given frames and others: the
/// first and the last, one of them, or none.
std::vector<int64_t> most_parted(const std::vector<Weighted>& kinds, int64_t latent_frames);
/// Shares of noise in the pixels of a noisy kind: ratio * noise + (1 - ratio) * pixels, drawn between these.
inline constexpr double kLeastNoise = 0.1, kMostNoise = 0.3;

/// What is left out where frames are given beside: "cond" the caption, "text" the frames, "null" both (named by what
/// stays, as in its program), "keep" nothing.
std::vector<std::string> drop_kinds();

}  // namespace tessera::families
