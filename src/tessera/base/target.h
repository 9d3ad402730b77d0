#pragma once
// Chips that plans are made for, with what LibTorch and its libraries take on them beside the tensors of a program. A plan
// for one can be made on a machine without it.
//
//   const Target& hopper = target("sm_90");
//   cublas_workspace(hopper, cublas_setting(hopper, /*deterministic=*/false));      // 32 MiB
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct Target {
  std::string_view name;    ///< nvcc's name of the architecture
  int multiprocessors;      ///< of its largest chip
  std::string_view cublas;  ///< CUBLAS_WORKSPACE_CONFIG with LibTorch's own choice: count blocks of so many KiB
};

/// All that are known, oldest first.
const std::vector<Target>& targets();

/// Throws UserError (input) with the nearest known name, said to be at `where`.
const Target& target(std::string_view name, std::string_view where);

/// CUBLAS_WORKSPACE_CONFIG of a run: what the process was started with; else what cuBLAS asks for to give the same bits each
/// time, or the target's. A run sets it and a plan counts it, so that they agree whatever LibTorch would choose.
std::string cublas_setting(const Target& target, bool deterministic);

/// Bytes that LibTorch takes from its allocator for a handle and a stream, cuBLASLt's among them, with that setting; the
/// target's where LibTorch cannot read it.
int64_t cublas_workspace(const Target& target, std::string_view setting);

/// CUDNN_CONV_WSCAP_DBG of a run, MiB: what the process was started with, else 2048. LibTorch takes the first way of a
/// convolution that cuDNN offers and that there is memory for, whatever its workspace; this bounds those that are offered. A
/// run sets it and a plan counts it.
std::string cudnn_setting();

/// Bytes that a convolution takes from LibTorch's allocator with it, at most, while it runs; those of 2048 where it is no
/// number. Whatever cuDNN makes of the variable, a run's allocator gives no more (ops/convolution.h).
int64_t cudnn_workspace(std::string_view setting);

}  // namespace tessera
