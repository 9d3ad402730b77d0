#pragma once
// The speech-to-video transformer of Wan 2.2 as units: a stem with an audio encoder, the usual blocks, audio injectors
// after some of them, the usual head.
//
// Shapes: B samples with T tokens together; each sample's tokens are those of its reference image, then of its noisy
// clip, then of the frames before the clip (s2v_tokens.h). N latent frames of all clips, `a` audio tokens a frame.
//   stem   in: patches [T, c * 4], text [B * n, d_text], sinusoid [B + 1, d_freq] (the last row is t = 0), pose
//              [T, c_pose * 4], parts [T] int64 (a Part), audio [layers, 4 * N, d_audio].
//              Frames before the clip are not in patches and pose, and come last in parts; then more inputs follow:
//              order [T] int64, the position of each token in these rows, and the frames' patches, one tensor a bucket
//   stream: x [T, d];  conditioning: e [B + 1, d], e0 [B + 1, 6, d], context [B * n, d], audio [N * a, d],
//           global audio of a frame [N, d]
//   head   out: [T, 4 * c_out]; predictions are the rows of noisy clips
#include <memory>

#include "tessera/models/wan/network.h"
#include "tessera/models/wan/s2v_config.h"
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

}  // namespace tessera::models::wan
