#pragma once
// How a kernel is launched: tests/cuda runs the .cu files on the CPU, where <<<>>> means nothing, and has a form of its
// own.
//
//   TESSERA_LAUNCH(adamw, blocks, kThreads, stream, p, m, v, g, n, f);
//   return cudaGetLastError();
#include <cuda_runtime_api.h>

#ifndef TESSERA_MAX_THREAD_BLOCKS
#define TESSERA_MAX_THREAD_BLOCKS 4096
#endif

namespace tessera::cuda {

/// More than a chip holds at once; each goes over several parts of the work. On the CPU there are four, so that they do.
constexpr int kMaxThreadBlocks = TESSERA_MAX_THREAD_BLOCKS;

}  // namespace tessera::cuda

/// Before a loop over values in registers: a loop that stays one needs them in memory.
#ifdef __CUDACC__
#define TESSERA_UNROLL _Pragma("unroll")
#else
#define TESSERA_UNROLL
#endif

/// The CPU counts the bytes of memory that a kernel reads and writes (tests/cuda).
#ifndef TESSERA_TOUCHES
#define TESSERA_TOUCHES(at, bytes, writes)
#endif

#ifndef TESSERA_LAUNCH
#define TESSERA_LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif
