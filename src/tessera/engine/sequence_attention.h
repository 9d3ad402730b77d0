#pragma once
// Self-attention of tokens that several ranks share: Ulysses over sp, the ring over cp, or one within the other.
//
//   ops::AttentionInputs wide = sent.arrive(q, k, v, T, parallel);                  // ulysses.h
//   Tensor out = sequence_attention(wide, heads, ctx.tokens(), parallel);           // [t, heads * d], as q
//
// Over sp, ranks exchange q, k and v of their tokens for q, k and v of all tokens of the block and their own heads
// (SentOperands in ulysses.h). Then the queries of each rank of cp attend to the keys of all blocks in a ring, and the
// output goes back to the ranks that own the tokens. The graph saves the exchanged q, k and v. It does not save the
// exchanged output: the backward needs only its row-wise product with the gradient, which is computed by the owner and
// sent before the gradient.
//
// [Note: what hides an exchange] The units say when an operand is ready (net::Context::ahead): q travels while k and v are
// computed, k while v is, and the last one while a unit computes what reads nothing of attention (Wan's keys and values of the
// text), else it is waited for. In the backward the three gradients are sent together, and each is awaited by the backward of
// what made it, in the opposite order: v's travels beside the text's, k's and q's also while those of v and k run. The
// output's gradient travels while the linear that reads the output computes its weight gradient (ops/session.h). The
// output itself is waited for. What is computed meanwhile is measured (plan::Traffic), and the cost model lets so much of an
// exchange vanish (plan/simulate/cost.h).
#include "tessera/engine/parallel.h"
#include "tessera/net/context.h"
#include "tessera/ops/ops.h"

namespace tessera::engine {

// Ring attention: each rank of cp has a block of the tokens, and the blocks of keys and values are passed around the
// ring. Queries attend to the keys of their own samples in every block; partial results are merged exactly by their
// log-sum-exps.
//
//   ops::AttentionResult r = ring_forward({q, k, v}, heads, offsets, parallel);
//   ops::AttentionInputs grads = ring_backward({q, k, v}, d_out, r.lse, delta, heads, offsets, parallel);
//
// [Note: the ring] At ring step i a rank works on the block of the rank i positions before it and sends that block to
// the next rank meanwhile. The backward passes keys and values on in the same way, and after each block its gradients:
// a rank adds its gradients of a block to those that it received. After the last step the sum goes to the block's
// owner, who adds its own. The order of additions is that of the ring, the same in every run. A group of one has one
// step.
//
// Keys and values are sent in their own dtype. Partial results and the gradients on the ring are fp32; results are
// rounded once, at the end.

/// q, k, v [tokens of this rank's block, heads * d]; `offsets` [B+1]: where the samples of the micro-batch start.
ops::AttentionResult ring_forward(const ops::AttentionInputs& in, int64_t heads, const std::vector<int64_t>& offsets,
                                  const Parallel& parallel);

/// lse, delta (ops::attention_delta) [heads, tokens of the block], over all keys.
ops::AttentionInputs ring_backward(const ops::AttentionInputs& in, const Tensor& d_out, const Tensor& lse,
                                   const Tensor& delta, int64_t heads, const std::vector<int64_t>& offsets,
                                   const Parallel& parallel);

/// q, k, v [tokens of the block, heads / sp * d]; sp must divide heads. `keep` and `known` as in ops::attention: their
/// output is that of this rank's tokens, their log-sum-exp that of the block's tokens and this rank's heads. With `known`,
/// a recompute repeats the exchange of q, k and v but not the ring.
Tensor sequence_attention(const ops::AttentionInputs& wide, int64_t heads, const net::Tokens& tokens,
                          const Parallel& parallel, ops::AttentionResult* keep = nullptr,
                          const ops::AttentionResult* known = nullptr);

/// The same for segments that are not whole samples: ranks of cp gather the keys and values of all blocks, and each
/// rank computes the queries of its own block. The gradients of keys and values are reduce-scattered to their blocks,
/// in rank order.
Tensor segment_attention(const ops::AttentionInputs& wide, int64_t heads, const net::Tokens& tokens,
                         const net::Segments& segments, const Parallel& parallel, ops::AttentionResult* keep = nullptr,
                         const ops::AttentionResult* known = nullptr);

/// Sums the states of linear attention (ops/rows.h), and in the backward their gradient, over the ranks of cp x sp, or
/// of cp x sp x tp.
Tensor sum_states(const Tensor& states, bool over_tp, const Parallel& parallel);

}  // namespace tessera::engine
