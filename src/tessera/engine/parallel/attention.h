#pragma once
// Self-attention of tokens that several ranks share: Ulysses over sp, the ring over cp, or one within the other.
//
//   Tensor out = sequence_attention(q, k, v, heads, ctx.tokens(), parallel);      // [t, heads * d], as q
//
// Over sp, q, k and v of this rank's tokens become those of the block's tokens and this rank's heads (ulysses.h); there
// each rank of cp meets the others' keys (ring.h); the output goes back to the tokens' owners. The graph keeps what the
// ranks work on, and of the output no more than its owner has anyway: what backward needs of it, its product with
// the gradient, travels with the gradient.
#include "tessera/engine/parallel/parallel.h"
#include "tessera/net/context.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

/// q, k, v [tokens here, heads * d], with sp a divisor of heads. `keep` and `known` as in ops::attention: their output
/// is that of the tokens here, their log-sum-exp that of the block's tokens and this rank's heads. With `known` only
/// the exchange of q, k and v runs again, and of the ring nothing.
Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const net::Tokens& tokens,
                          const Parallel& parallel, ops::AttentionResult* keep = nullptr,
                          const ops::AttentionResult* known = nullptr);

/// The same of segments that are not whole samples: ranks of cp gather the keys and values of all blocks, and each has
/// the queries of its own. The gradients of keys and values go back to their blocks, added up in the ranks' order.
Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, const net::Tokens& tokens,
                         const net::Segments& segments, const Parallel& parallel, ops::AttentionResult* keep = nullptr,
                         const ops::AttentionResult* known = nullptr);

/// Adds up the states of linear attention (ops/rows.h) over the ranks of cp x sp, or of cp x sp x tp; and their gradient.
Tensor sum_states(const Tensor& states, bool over_tp, const Parallel& parallel);

}  // namespace tessera::engine
