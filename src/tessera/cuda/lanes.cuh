#pragma once
// What the kernels over blocks of 256 values share. A warp has a block, each lane eight consecutive values of it, which
// stay in registers between one load and one store.
//
//   for (BlockOfWarp block(n); block.inside(); block.next()) {
//     float x[kLaneValues];
//     load_lane(x, source + block.at(), block.count());
//     const float most = warp_max(largest_magnitude(x));  // every lane gets it
//   }
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tessera/cuda/launch.h"

namespace tessera::cuda {

constexpr int kBlockValues = 256;
constexpr int kLaneValues = kBlockValues / 32;
constexpr int kThreads = 256;  ///< of a thread block: eight warps
constexpr int kWarps = kThreads / 32;

/// Thread blocks for n values.
inline int thread_blocks(int64_t n) {
  const int64_t wanted = (n + kWarps * kBlockValues - 1) / (kWarps * kBlockValues);
  return static_cast<int>(wanted < kMaxThreadBlocks ? wanted : kMaxThreadBlocks);
}

/// The blocks of values that a warp goes over. All its lanes go together, also those that have no values.
class BlockOfWarp {
 public:
  __device__ explicit BlockOfWarp(int64_t n)
      : BlockOfWarp(n, static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) {}
  __device__ BlockOfWarp(int64_t n, int64_t block) : n_(n), block_(block) {}
  __device__ bool inside() const { return block_ * kBlockValues < n_; }
  __device__ void next() { block_ += static_cast<int64_t>(gridDim.x) * kWarps; }
  __device__ int64_t index() const { return block_; }
  __device__ bool leads() const { return threadIdx.x % 32 == 0; }
  /// This lane's first value, and how many it has: 8, but for the last block.
  __device__ int64_t at() const { return block_ * kBlockValues + threadIdx.x % 32 * kLaneValues; }
  __device__ int count() const {
    const int64_t left = n_ - at();
    return left >= kLaneValues ? kLaneValues : left > 0 ? static_cast<int>(left) : 0;
  }

 private:
  int64_t n_, block_;
};

/// A lane's values as one access of 8 or 16 bytes, or two of 16.
template <class T>
struct alignas(sizeof(T) == 1 ? 8 : 16) Lane {
  T values[kLaneValues];
};

template <class T>
__device__ bool whole_lane(const T* at, int count) {
  return count == kLaneValues && reinterpret_cast<uintptr_t>(at) % alignof(Lane<T>) == 0;
}

/// Values beyond `count` are zero.
template <class T>
__device__ void load_lane(T (&values)[kLaneValues], const T* from, int count) {
  TESSERA_TOUCHES(from, count * sizeof(T), false);
  if (whole_lane(from, count)) {
    const Lane<T> lane = *reinterpret_cast<const Lane<T>*>(from);
    for (int j = 0; j < kLaneValues; ++j) values[j] = lane.values[j];
  } else {
    for (int j = 0; j < kLaneValues; ++j) values[j] = j < count ? from[j] : T{};
  }
}

/// Word `index` of a lane as it lies in memory.
template <class T>
__device__ unsigned word_of(const T (&values)[kLaneValues], int index) {
  if constexpr (sizeof(T) == 4) {
    unsigned word;
    memcpy(&word, &values[index], sizeof(word));
    return word;
  } else {
    constexpr int kPart = 4 / sizeof(T);
    unsigned word = 0;
    for (int j = 0; j < kPart; ++j)
      word |= static_cast<unsigned>(static_cast<std::make_unsigned_t<T>>(values[index * kPart + j]))
              << (32 / kPart * j);
    return word;
  }
}

/// By CUDA's function for whole stores: the compiler takes an assignment apart where values come from branches.
template <class T>
__device__ void store_lane(T* to, const T (&values)[kLaneValues], int count) {
  TESSERA_TOUCHES(to, count * sizeof(T), true);
  if (whole_lane(to, count)) {
    if constexpr (sizeof(T) == 1) {
      __stwb(reinterpret_cast<uint2*>(to), make_uint2(word_of(values, 0), word_of(values, 1)));
    } else {
      for (int v = 0; v < static_cast<int>(sizeof(T)) / 2; ++v)
        __stwb(reinterpret_cast<uint4*>(to) + v, make_uint4(word_of(values, 4 * v), word_of(values, 4 * v + 1),
                                                            word_of(values, 4 * v + 2), word_of(values, 4 * v + 3)));
    }
  } else {
    for (int j = 0; j < kLaneValues; ++j)
      if (j < count) to[j] = values[j];
  }
}

/// Passes over NaN, as the CPU's maxima do.
__device__ inline float largest_magnitude(const float (&values)[kLaneValues]) {
  float most = 0;
  for (int j = 0; j < kLaneValues; ++j) most = fmaxf(most, fabsf(values[j]));
  return most;
}

/// The largest value of a warp's lanes. All of them call it.
__device__ inline float warp_max(float value) {
  for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
  return value;
}

}  // namespace tessera::cuda
