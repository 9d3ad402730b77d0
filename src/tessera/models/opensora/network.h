#pragma once
// The MMDiT as units: stem, blocks in which video and text have weights of their own, blocks in which they share them,
// head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, of each first its text rows, n together, and then those of its video; d channels.
//   stem   in: patches [T, c_in], with `cond` mask and given latent [T, c_cond] (both of video tokens, zeros elsewhere),
//              text [n, d_text], sinusoid of the time [B, 256], with `guidance` that of the guidance, pooled text [B, d_p]
//   stream: x [T, d];  conditioning: vec [B, d]
//   head   out: [T, c_in], of which the video's rows are predictions
// Tokens::rows maps tokens to rows of the modulations: 2 s of sample s's video, 2 s + 1 of its text.
#include <memory>

#include "tessera/models/opensora/config.h"
#include "tessera/net/unit.h"

namespace tessera::models::opensora {

/// Row spaces: the tokens, and their two streams.
enum Space { kTokens, kVideo, kText };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

}  // namespace tessera::models::opensora
