#pragma once
// A micro-batch cut to the tokens that rest on a rank, and rows of all ranks put together again.
//
//   const net::Batch mine = slice(model.pack(samples), parallel);
//   const Tensor prediction = whole_tokens(executor.forward(...)[0], mine.tokens, parallel);
#include "tessera/engine/parallel/parallel.h"
#include "tessera/net/model.h"

namespace tessera::engine {

/// The rank's share of `batch`, in memory of its own; what has no row for each token stays whole. Throws UserError
/// (usage) when there are fewer tokens than ranks that share them.
net::Batch slice(net::Batch batch, const Parallel& parallel);

/// Rows [tokens here, n] of all ranks of the sequence, [T, n]; as they are where nothing is cut.
Tensor whole_tokens(const Tensor& rows, const net::Tokens& tokens, const Parallel& parallel);

/// Gradients of a batch's inputs as those of the whole: rows by token are put together, the others, to which each rank
/// of the sequence has a share, are added up.
std::vector<Tensor> whole_input_grads(std::vector<Tensor> grads, const net::Batch& batch, const Parallel& parallel);

}  // namespace tessera::engine
