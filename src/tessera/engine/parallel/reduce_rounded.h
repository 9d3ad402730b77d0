#pragma once
// Sums of gradients that travel in 16 bits: each rank's are rounded once, added up in fp32 in the order of the members,
// and so every run gives the same bits.
#include "tessera/comm/comm.h"

namespace tessera::engine {

/// shard [n] (+)= sum over members of their flat [N * n] at this member's place, each rounded to `type` (16 bits).
/// fp32; `flat` is lost, `scratch` [N * n]. Sends half of what Group::reduce_scatter does.
void reduce_scatter_rounded(comm::Group& group, at::ScalarType type, const at::Tensor& shard, const at::Tensor& flat,
                            const at::Tensor& scratch, bool accumulate);

/// In place: the sum over members of their tensors, each rounded to `type`, and rounded so itself: every member has the
/// same bits. Takes no memory: what is sent and received lies in the halves of the tensor.
void all_reduce_rounded(comm::Group& group, at::ScalarType type, const at::Tensor& tensor);

}  // namespace tessera::engine
