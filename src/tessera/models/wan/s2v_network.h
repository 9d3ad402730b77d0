#pragma once
// The speech-to-video transformer of Wan 2.2 as units: a stem that also hears, the usual blocks, an injector after some
// of them, the usual head.
//
// Shapes: B samples, T tokens together; each sample's tokens are those of the picture it is made from, then of its
// noisy clip, then of the frames before it (s2v_tokens.h). N latent frames of all clips, a sound tokens a frame.
//   stem   in: patches [T, c * 4], text [B * n, d_text], sinusoid [B + 1, d_freq] (the last row is t = 0), pose
//              [T, c_pose * 4], parts [T] int64 (a Part), sound [layers, 4 * N, d_audio];
//              with frames before the clip, patches and pose lack them, parts has them last, and there follow order [T]
//              int64, where each token is found then, and their patches, one tensor a bucket
//   stream: x [T, d];  conditioning: e [B + 1, d], e0 [B + 1, 6, d], context [B * n, d], sound [N * a, d],
//           sound of a frame as a whole [N, d]
//   head   out: [T, 4 * c_out]; predictions are the rows of noisy clips
#include <memory>

#include "tessera/models/wan/network.h"
#include "tessera/models/wan/s2v_config.h"
#include "tessera/net/unit.h"

namespace tessera::models::wan {

/// Row spaces after the text: each clip's tokens among the others (a modulation row a frame), and the rows of its sound.
/// The tokens' only segments are frames of clips and their sound.
enum SoundSpace { kClip = kText + 1, kSound };

/// What a token stands for: rows of the learned mask.
enum Part : int64_t { kNoisy, kReference, kMotionPart };

std::vector<std::unique_ptr<net::Unit>> make_s2v_units(const S2vConfig& config);

/// Hidden states [layers, 4 * N, d_audio] of clips of `frames` latent frames each, one after the other, to sound tokens
/// [N * a, d] and one [N, d] a frame. Sites are those of the stem.
std::pair<at::Tensor, at::Tensor> encode_audio(net::Context& ctx, const S2vConfig& config, const at::Tensor& states,
                                               const std::vector<int64_t>& frames);

}  // namespace tessera::models::wan
