#include "tessera/models/vae/vae_values.h"

#include <algorithm>
#include <cstring>

namespace tessera::models {

using at::Tensor;

Tensor in_range(const Tensor& pixels) {
  if (pixels.scalar_type() != at::kByte) return pixels.to(at::kFloat);
  return pixels.to(at::kFloat).div_(127.5).sub_(1);
}

uint64_t hash_tensor(uint64_t hash, const Tensor& tensor) {
  const Tensor dense = tensor.cpu().contiguous();
  const auto* bytes = static_cast<const char*>(dense.const_data_ptr());
  const size_t count = dense.nbytes();
  for (size_t i = 0; i < count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<size_t>(8, count - i));
    hash = (hash ^ word) * 0x100000001B3;
    hash ^= hash >> 29;  // a product alone never carries high bits into low ones
  }
  return hash;
}

}  // namespace tessera::models
