#pragma once
// base/random.h on a device: 16 random bits for each of the eight elements of a lane.
//
//   uint32_t halves[2 * kLaneValues];                 // the first eight are the lane's
//   half_words(halves, key, key.first + element);
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/lanes.cuh"

namespace tessera::cuda {

/// Block `index` of the generator (base/random.cpp): the random bits of eight elements, 16 each.
__device__ inline void random_halves(uint32_t* halves, const DeviceRounding& rounding, uint64_t index) {
  uint32_t c[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), rounding.words[2],
                   rounding.words[3]};
  uint32_t k0 = rounding.words[0], k1 = rounding.words[1];
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    c[0] = high1 ^ c[1] ^ k0, c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1, c[3] = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < 8; ++j) halves[j] = c[j / 2] >> (j % 2 * 16) & 0xffff;
}

/// RandomKey::half_words of the elements of a lane. They are one block of the generator, or the ends of two; the shift by
/// powers of two leaves all indexes known to the compiler, so that nothing goes through local memory.
__device__ inline void half_words(uint32_t (&halves)[2 * kLaneValues], const DeviceRounding& rounding,
                                  uint64_t element) {
  random_halves(halves, rounding, element / 8);
  const int shift = static_cast<int>(element % 8);
  if (shift == 0) return;
  random_halves(halves + kLaneValues, rounding, element / 8 + 1);
  for (int step = 1; step < 8; step *= 2)
    if (shift & step)
      for (int j = 0; j + step < 2 * kLaneValues; ++j) halves[j] = halves[j + step];
}

}  // namespace tessera::cuda
