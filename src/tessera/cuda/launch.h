#pragma once
// How a kernel is launched: tests/cuda runs the .cu files on the CPU, where <<<>>> means nothing, and has a form of its
// own.
//
//   TESSERA_LAUNCH(adamw, blocks, kThreads, stream, p, m, v, g, n, f);
//   return cudaGetLastError();
#include <cuda_runtime_api.h>

#ifndef TESSERA_LAUNCH
#define TESSERA_LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif
