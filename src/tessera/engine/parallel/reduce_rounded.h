#pragma once
// Gradient reductions in 16 bits: each rank rounds its gradients once, and the sum is in fp32 and in rank order, so
// that every run gives the same bits.
#include "tessera/comm/comm.h"

namespace tessera::engine {

/// shard [n] (+)= the sum over the N members of the n elements at this member's index in their `flat` [N * n], each
/// rounded to `type` (16 bits). Tensors are fp32; `flat` is overwritten; `scratch` [N * n]. Sends half the bytes of
/// Group::reduce_scatter.
void reduce_scatter_rounded(comm::Group& group, at::ScalarType type, const at::Tensor& shard, const at::Tensor& flat,
                            const at::Tensor& scratch, bool accumulate);

/// In place: the sum over members of their tensors, each rounded to `type`. The sum is rounded to `type` too, so that
/// every member has the same bits. Allocates nothing: half of the tensor is the send buffer, half the receive buffer.
void all_reduce_rounded(comm::Group& group, at::ScalarType type, const at::Tensor& tensor);

}  // namespace tessera::engine
