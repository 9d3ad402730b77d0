// Prodigy in one pass over memory (ops/adamw.h), with the sums that its step size follows from.
#include "tessera/cuda/forms.cuh"

namespace tessera::cuda {

namespace {

/// A thread block has kUpdateGrain elements, whose blocks its warps take in turns. A turn's sums are added in order: of a lane's
/// values by place over the lanes in fp32, then those in double over the blocks, by two threads.
constexpr int64_t kPart = 1 << 16;
constexpr int kSums = 2 * kLaneValues;  // of a block

__global__ void __launch_bounds__(kThreads, 2)
    prodigy(DeviceMasters p, DeviceMoment m, DeviceMoment v, float* __restrict__ s_of, float* __restrict__ start_of,
            ops::GradientRange g, int64_t n, ops::ProdigyFactors f, double* __restrict__ totals) {
  __shared__ float first_map[256], second_map[256];
  __shared__ float products[kWarps][kSums][33], sums[2][kWarps][kSums];
  if (m.codes) load_map(first_map, m.map);
  if (v.codes) load_map(second_map, v.map);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t part = blockIdx.x; part * kPart < n; part += gridDim.x) {
    const int64_t stop = (part + 1) * kPart < n ? (part + 1) * kPart : n;
    double total = 0;
    int turn = 0;
    for (int64_t at = part * kPart; at < stop; at += kWarps * kBlockValues, turn ^= 1) {
      const BlockOfWarp block(stop, at / kBlockValues + warp);
      if (block.inside()) {
        float gradient[kLaneValues], first[kLaneValues], second[kLaneValues], value[kLaneValues], s[kLaneValues],
            start[kLaneValues];
        load(gradient, g, block);
        load(first, m, first_map, block);
        load(second, v, second_map, block);
        load(value, p, block);
        load_lane(s, s_of + block.at(), block.count());
        if (!f.begins) load_lane(start, start_of + block.at(), block.count());
        for (int j = 0; j < kLaneValues; ++j) {
          if (f.begins) start[j] = value[j];
          const float scaled = gradient[j] * f.scale;
          const bool there = j < block.count();
          products[warp][j][lane] = there ? scaled * (start[j] - value[j]) : 0;
          first[j] = first[j] * f.keep_first + scaled * f.take_first;
          second[j] = second[j] * f.keep_second + scaled * scaled * f.take_second;
          s[j] = s[j] * f.keep_sum + scaled * f.take_sum;
          products[warp][kLaneValues + j][lane] = there ? fabsf(s[j]) : 0;
          const float root = sqrtf(second[j]) + f.eps;
          value[j] = value[j] * f.decay - (root > 0 ? f.step * (first[j] / root) : 0);
        }
        __syncwarp();  // all lanes have read the scales, and their products are there
        store(p, value, block);
        store(m, first_map, false, first, block);
        store(v, second_map, false, second, block);
        store_lane(s_of + block.at(), s, block.count());
        if (f.begins) store_lane(start_of + block.at(), start, block.count());
      }
      if (lane < kSums) {
        float sum = 0;
        for (int i = 0; block.inside() && i < 32; ++i) sum += products[warp][lane][i];
        sums[turn][warp][lane] = sum;
      }
      __syncthreads();  // the other half of `sums` is read when all come here next
      if (lane == 0 && warp < 2)
        for (int w = 0; w < kWarps; ++w)
          for (int j = 0; j < kLaneValues; ++j) total += static_cast<double>(sums[turn][w][warp * kLaneValues + j]);
    }
    if (totals && lane == 0 && warp < 2) totals[2 * part + warp] = total;
    __syncthreads();  // the sums are read
  }
}

}  // namespace

cudaError_t launch_prodigy(DeviceMasters p, DeviceMoment m, DeviceMoment v, float* s, float* start,
                           const ops::GradientRange& g, int64_t n, const ops::ProdigyFactors& factors, double* totals,
                           cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const int64_t parts = (n + kPart - 1) / kPart;
  const int blocks = static_cast<int>(parts < kMaxThreadBlocks ? parts : kMaxThreadBlocks);
  TESSERA_LAUNCH(prodigy, blocks, kThreads, stream, p, m, v, s, start, g, n, factors, totals);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
