#pragma once
// A linear with a frozen weight, and its LoRA pair where the unit has one (net/adapters.h).
//
//   Tensor y = frozen_site(store, unit, "self_attn.q", x, bias, tokens, adapters, /*gelu=*/false, at::kBFloat16);
#include <optional>

#include "tessera/engine/store/store.h"
#include "tessera/net/context.h"
#include "tessera/plan/token_shares.h"

namespace tessera::engine {

/// The rows of a space and the columns that a linear's input has, for dropout: its mask is drawn for the whole input.
struct InputPart {
  int space = 0;
  std::optional<plan::TokenRange> rows = {};  ///< of the space; nullopt: this rank's rows
  int64_t width = 0, first_column = 0;        ///< of the whole input; width 0: x has all columns
};

/// `adapters` null: no pair is looked up. The result has dtype `type`. `known` as in ops::frozen_linear.
Tensor frozen_site(Store& store, int unit, std::string_view site, const Tensor& x, ops::WeightSite* bias,
                   const net::Tokens& tokens, const net::AdapterSettings* adapters, bool gelu, at::ScalarType type,
                   const InputPart& part, const Tensor* known = nullptr);

}  // namespace tessera::engine
