#pragma once
// The speech-to-video transformer of Wan 2.2 as units: a stem with an audio encoder, the usual blocks, audio injectors
// after some of them, the usual head.
//
// Shapes: B samples with T tokens together; each sample's tokens are those of its reference image, then of its noisy
// clip, then of the frames before the clip (see below). N latent frames of all clips, `a` audio tokens a frame.
//   stem   in: patches [T, c * 4], text [B * n, d_text], sinusoid [B + 1, d_freq] (the last row is t = 0), pose
//              [T, c_pose * 4], parts [T] int64 (a Part), audio [layers, 4 * N, d_audio].
//              Frames before the clip are not in patches and pose, and come last in parts; then more inputs follow:
//              order [T] int64, the position of each token in these rows, and the frames' patches, one tensor a bucket
//   stream: x [T, d];  conditioning: e [B + 1, d], e0 [B + 1, 6, d], context [B * n, d], audio [N * a, d],
//           global audio of a frame [N, d]
//   head   out: [T, 4 * c_out]; predictions are the rows of noisy clips
//
// Positions of the tokens of a speech-to-video sample: the noisy clip, its reference image, and the frames before the
// clip, which are packed more coarsely the older they are.
//
//   for (const Grid& grid : motion_grids(h, w)) append(grid_rotary(grid, head_dim));
#include <memory>
#include <string_view>

#include "tessera/models/common/patches.h"
#include "tessera/models/common/rotary.h"
#include "tessera/models/wan/config.h"
#include "tessera/models/wan/network.h"
#include "tessera/net/unit.h"

namespace tessera::models::wan {

/// Row spaces after the text: the tokens of each noisy clip (a modulation row for each frame), and the rows of its
/// audio. The only segments table joins a clip's frames with their audio.
enum SoundSpace { kClip = kText + 1, kSound };

/// The kind of a token, which is its row of the learned mask.
enum Part : int64_t { kNoisy, kReference, kMotionPart };

std::vector<std::unique_ptr<net::Unit>> make_s2v_units(const S2vConfig& config);

/// Sequences [t, channels] of several lengths.
using Series = std::vector<at::Tensor>;
/// A causal convolution over three rows to `out` channels: the first row is repeated in front, and each output depends on
/// the rows up to its own.
Series causal_convolution(net::Context& ctx, const std::string& site, const Series& series, int64_t out,
                          int64_t stride);
/// LayerNorm without weights, then SiLU, from operators whose gradients run on meta tensors, too.
Series norm_silu(const Series& series);

/// Hidden states [layers, 4 * N, d_audio] of clips with `frames` latent frames each, one after the other, to audio
/// tokens [N * a, d] and one global row a frame [N, d]. Sites are those of the stem.
std::pair<at::Tensor, at::Tensor> encode_audio(net::Context& ctx, const S2vConfig& config, const at::Tensor& states,
                                               const std::vector<int64_t>& frames);

/// Latent frames before the clip that share a kernel, counted from the newest.
struct MotionBucket {
  std::string_view site;  ///< of the stem
  Patch kernel;
  int64_t begin, end;  ///< in latent frames: 0 is the newest
};
inline constexpr std::array<MotionBucket, 3> kMotionBuckets = {{{"frame_packer.proj", {1, 2, 2}, 0, 1},
                                                                {"frame_packer.proj_2x", {2, 4, 4}, 1, 3},
                                                                {"frame_packer.proj_4x", {4, 8, 8}, 3, 19}}};
inline constexpr int64_t kMotionFrames = kMotionBuckets.back().end;  ///< latent frames of motion
inline constexpr int64_t kReferenceTime = 30;                        ///< the reference image's position in time

Grid reference_grid(int64_t h, int64_t w);
/// One grid for each bucket, in their order; `h`, `w` in tokens of the clip. Times are negative.
std::vector<Grid> motion_grids(int64_t h, int64_t w);

/// The last kMotionFrames frames of a motion latent [C, M, H, W], with zeros in front of fewer; and the frames of one
/// bucket.
at::Tensor padded_motion(const at::Tensor& motion);
at::Tensor bucket_frames(const at::Tensor& padded, const MotionBucket& bucket);

}  // namespace tessera::models::wan
