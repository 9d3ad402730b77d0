#pragma once
// Sums of squares in the order of ops::sum_of_squares, of values that a kernel computes as it goes.
//
//   __shared__ double sums[kWarps][32];
//   partial_squares(partials, sums, n, value);     // value(i): called with i that grow, by each thread
//   ... launch_add_in_order(out, partials, partial_sums(n), 1, ...);
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/lanes.cuh"

namespace tessera::cuda {

/// A warp has a partial sum and each of its lanes one of the 32 sums that take turns. A lane adds in order, so it waits for
/// each addition; what it reads, it asks for sixteen turns ahead.
template <class Value>
__device__ void partial_squares(double* __restrict__ partials, double (&sums)[kWarps][32], int64_t n, Value value) {
  constexpr int kAhead = 16;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * kWarps + warp; c * kSquaresOfPartial < n;
       c += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t start = c * kSquaresOfPartial, left = n - start;
    const int count = static_cast<int>(left < kSquaresOfPartial ? left : kSquaresOfPartial), whole = count / 32 * 32;
    double sum = 0;
    int i = 0;
    for (; i + kAhead * 32 <= whole; i += kAhead * 32) {
      float ahead[kAhead];
      for (int j = 0; j < kAhead; ++j) ahead[j] = value(start + i + j * 32 + lane);
      for (int j = 0; j < kAhead; ++j) sum += static_cast<double>(ahead[j]) * static_cast<double>(ahead[j]);
    }
    for (; i < whole; i += 32) {
      const double x = static_cast<double>(value(start + i + lane));
      sum += x * x;
    }
    sums[warp][lane] = sum;
    __syncwarp();
    if (lane == 0) {
      const double(&turns)[32] = sums[warp];
      double total = 0;
      for (int w = 0; w < 8; ++w) total += (turns[w] + turns[8 + w]) + (turns[16 + w] + turns[24 + w]);
      for (; i < count; ++i) {
        const double x = static_cast<double>(value(start + i));
        total += x * x;
      }
      partials[c] = total;
    }
    __syncwarp();  // the sums are read
  }
}

}  // namespace tessera::cuda
