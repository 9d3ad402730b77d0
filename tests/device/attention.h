#pragma once
// LibTorch's attention kernels of a GPU on the simulated device, with their shapes and what they refuse: flash's, for samples of
// one length and of several, and cuDNN's. A process has them with TESSERA_SIMULATED_ATTENTION=1, else attention is products.
//
//   register_attention();                       // before the first attention
//   attention_calls().cudnn;                    // 2: a forward and a backward
#include <cstdint>

namespace tessera::testing {

/// Once a process.
void register_attention();

struct AttentionCalls {
  int alike = 0, unlike = 0, cudnn = 0;
  int64_t plans = 0;      ///< that cuDNN compiled, of forwards and of backwards
  int64_t workspace = 0;  ///< the most bytes that a backward of cuDNN took for itself
};
/// Since it was last set to {}.
AttentionCalls& attention_calls();

/// Whether cuDNN's log-sum-exp is [samples, heads, rows] and not [samples, heads, rows, 1], as in some versions of LibTorch.
void shape_statistics_flat(bool flat);

}  // namespace tessera::testing
