#pragma once
// The Sana transformer as units: stem, blocks, head.
//
//   for (const auto& unit : make_units(config)) flow = unit->forward(ctx, flow);
//
// Shapes: B samples with T tokens together, d channels, n text rows together, R rows of time.
//   stem   in: patches [T, c_in * patch], text [n, d_text], sinusoid [R, 256]; then, of models that have them, the
//              guidance's sinusoid [R, 256] and the table of positions [T, d]
//   stream: x [T, d];  conditioning: e [R, d], e6 [R, 6, d], context [n, d]
//   head   out: [T, patch * c_out], channel fastest
// A sample has one row of time, or one for each of its frames' timesteps; Tokens::rows maps tokens to rows.
#include <memory>

#include "tessera/models/sana/config.h"
#include "tessera/net/unit.h"

namespace tessera::models::sana {

/// Row spaces: the tokens, and each sample's text.
enum Space { kTokens, kText };

std::vector<std::unique_ptr<net::Unit>> make_units(const Config& config);

}  // namespace tessera::models::sana
