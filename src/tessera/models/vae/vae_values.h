#pragma once
// What autoencoders share: the range of their pixels, and a hash of their weights for cache keys.
//
//   Tensor x = in_range(bytes);                     // 0 .. 255 as numbers in [-1, 1]
//   hash = hash_tensor(kHashStart, weight);
#include <cstdint>

#include "tessera/ops/tensor.h"

namespace tessera::models {

/// Bytes as numbers in [-1, 1]; numbers as they are. fp32.
at::Tensor in_range(const at::Tensor& pixels);

inline constexpr uint64_t kHashStart = 0xCBF29CE484222325;
/// FNV-1a over 8 bytes at a time: half a gigabyte in a fraction of a second.
uint64_t hash_tensor(uint64_t hash, const at::Tensor& tensor);

}  // namespace tessera::models
