#pragma once
// A linear whose weight nobody trains, and its low-rank pair where the unit has one (net/adapters.h).
//
//   Tensor y = frozen_site(store, unit, "self_attn.q", x, bias, tokens, adapters, /*gelu=*/false);
#include "tessera/engine/store.h"
#include "tessera/net/context.h"

namespace tessera::engine {

/// `adapters` null: pairs are not looked for.
Tensor frozen_site(Store& store, int unit, std::string_view site, const Tensor& x, ops::WeightSite* bias,
                   const net::Tokens& tokens, const net::AdapterSettings* adapters, bool gelu);

}  // namespace tessera::engine
