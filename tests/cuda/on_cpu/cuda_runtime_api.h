#pragma once
// What the .cu files get from nvcc and its headers, on a CPU (device.h): found in place of CUDA's header of this name by
// the tests, which therefore need no toolkit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "on_cpu/device.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))

#define TESSERA_LAUNCH(kernel, blocks, threads, stream, ...) \
  (static_cast<void>(stream), tessera::on_cpu::run(dim3(blocks), dim3(threads), [&] { kernel(__VA_ARGS__); }))

#define TESSERA_TOUCHES(at, bytes, writes) tessera::on_cpu::touch(at, bytes, writes)

#define threadIdx tessera::on_cpu::thread_index
#define blockIdx tessera::on_cpu::block_index
#define blockDim tessera::on_cpu::block_size
#define gridDim tessera::on_cpu::grid_size

struct dim3 : tessera::on_cpu::Index {
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : Index{x, y, z} {}
};

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// --- in kernels
/// Goes on with each look.
inline long long clock64() {
  static long long looks = 0;
  return ++looks;
}

inline void __syncthreads() { tessera::on_cpu::block_barrier(); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  tessera::on_cpu::exchange(mask, 0, tessera::on_cpu::thread_index.x % 32);
}

inline float __shfl_xor_sync(unsigned mask, float value, int lane) {
  const unsigned from = (tessera::on_cpu::thread_index.x % 32) ^ static_cast<unsigned>(lane);
  return std::bit_cast<float>(tessera::on_cpu::exchange(mask, std::bit_cast<uint32_t>(value), from));
}

inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = std::max(before, value);
  return before;
}

inline double atomicAdd(double* at, double value) {
  const double before = *at;
  *at = before + value;
  return before;
}

template <class T>
void __stwb(T* at, T value) {
  if (reinterpret_cast<uintptr_t>(at) % alignof(T) != 0) std::abort();  // as a device does
  std::memcpy(at, &value, sizeof(value));
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }

// --- on the host
using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "invalid value"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaMalloc(void** at, size_t bytes) { return *at = std::malloc(bytes), cudaSuccess; }
inline cudaError_t cudaFree(void* at) { return std::free(at), cudaSuccess; }
inline cudaError_t cudaMemset(void* at, int byte, size_t bytes) { return std::memset(at, byte, bytes), cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* at, int byte, size_t bytes, cudaStream_t) {
  return cudaMemset(at, byte, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
