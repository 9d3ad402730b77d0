#pragma once
// The frames of a clip that a model is given beside the noisy ones: which kinds there are, and which of a clip's frames
// each of them gives. Open-Sora's trainers draw a kind for each clip, by weights.
//
//   const std::vector<Weighted> fit = fitting({{"t2v", 1}, {"i2v_head", 5}}, 9, /*causal=*/true);
//   const std::string kind = chosen(fit, u);                                        // u uniform in 0..1
//   for (const GivenFrames& given : given_frames(kind, 33, 9, true)) encode(frames of `given`);
//
// Kinds: t2v (nothing is given), i2v_head, i2v_tail, i2v_loop (the first frame, the last, both), v2v_head, v2v_tail (33
// frames at the begin or the end), v2v_head_easy, v2v_tail_easy (65 frames). An autoencoder that is `causal` in time makes
// a latent frame of the first frame and one of each four more; the frames that are given are encoded on their own, so that
// no latent tells of those that follow. One that is not makes a latent frame of each four, and v2v takes slices.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::families {

struct Weighted {
  std::string name;
  double weight;  ///< of its draw, relative to the others
  bool operator==(const Weighted&) const = default;
};

/// In the order of the table.
std::vector<std::string> given_kinds();

/// Those that a clip of that many latent frames is long enough for, in the same order. The program drops them from the
/// settings of its whole process; here each clip has its own. Throws UserError (usage) for an unknown kind.
std::vector<Weighted> fitting(const std::vector<Weighted>& kinds, int64_t latent_frames, bool causal);

/// The name in whose share of the weights `u` falls. Throws UserError (usage) where there is none.
std::string chosen(const std::vector<Weighted>& weights, double u);

/// Whether an autoencoder that makes so many latent frames of so many has one of the first frame alone.
bool is_causal(int64_t frames, int64_t latent_frames);

/// Frames of a clip that are given, and the latent frames that they become.
struct GivenFrames {
  int64_t begin, count;  ///< of the clip, encoded on their own; count 0: a slice of the clip's latent
  int64_t at, latents;
  bool noisy = false;        ///< encoded with some noise on the pixels (frame_masks.h)
  std::string name() const;  ///< of their latent in a cache: "given.0-33", "given.noisy"
  bool operator==(const GivenFrames&) const = default;
};
/// Of a picture, none. Throws UserError (usage) for an unknown kind.
std::vector<GivenFrames> given_frames(const std::string& kind, int64_t frames, int64_t latent_frames, bool causal);

/// Whether it is the name of such a latent.
bool is_given_name(const std::string& name);

/// All that clips of this length may be asked for by these kinds and that is encoded on its own, each once.
std::vector<GivenFrames> all_given(const std::vector<Weighted>& kinds, int64_t frames, int64_t latent_frames);
/// What clips of any length are asked for, for keys of a cache: "first last first33"; empty: nothing.
std::string given_text(const std::vector<Weighted>& kinds);

/// Where a kind gives frames, and whether they are single pictures.
struct GivenPlaces {
  bool head = false, tail = false, pictures = false;
  bool any() const { return head || tail; }
};
/// Throws UserError (usage) for an unknown kind.
GivenPlaces places_of(const std::string& kind);
/// The kind that gives a first picture, a last one, both, the begin of a video, or nothing.
std::string kind_giving(bool first, bool last, bool video);
/// How a recipe writes kinds with weights, for help.
std::string given_examples();
/// Latent frames of each place. Throws UserError (usage) for an unknown kind.
int64_t latents_given(const std::string& kind, bool causal);

/// A video longer than a model's clip, made in windows that begin with the last frames of the one before. The last window
/// is as long as the others; what it has beyond the video is cut off.
struct Windows {
  int64_t length = 0;   ///< frames of each; 0: the video is one clip
  int64_t overlap = 0;  ///< frames that a window has of the one before
  int64_t frames = 0;   ///< of the video

  int64_t begin(int64_t window) const { return window * (length - overlap); }
  int64_t end(int64_t window) const { return begin(window) + length; }
  int64_t count() const;
};

/// Which of a shorter video's frames is shown at a place: 0, 1, .. frames - 1, frames - 2, .. 0, 1, ..
int64_t to_and_fro(int64_t place, int64_t frames);

}  // namespace tessera::families
