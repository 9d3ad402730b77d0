// Dropout in place, of rows that have one key (ops/dropout.h). A lane has eight columns of a row.
#include "tessera/cuda/halves.cuh"
#include "tessera/cuda/random.cuh"

namespace tessera::cuda {

namespace {

/// Calls body(offset of the lane's first value, count, mask) of each lane; mask[j] < border: value j is dropped.
template <class Body>
__device__ void each_lane(const DropRows& rows, const Body& body) {
  const int64_t lanes_of_row = (rows.cols + kLaneValues - 1) / kLaneValues, lanes = rows.rows * lanes_of_row;
  for (int64_t lane = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; lane < lanes;
       lane += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = lane / lanes_of_row, col = lane % lanes_of_row * kLaneValues, left = rows.cols - col;
    uint32_t halves[2 * kLaneValues];
    half_words(halves, rows.key, rows.key.first + static_cast<uint64_t>(row * rows.width + col));
    body(row * rows.stride + col, left < kLaneValues ? static_cast<int>(left) : kLaneValues, halves);
  }
}

__device__ void drop(float (&x)[kLaneValues], const uint32_t (&halves)[2 * kLaneValues], const DropRows& rows) {
  for (int j = 0; j < kLaneValues; ++j) x[j] = halves[j] >= rows.border ? x[j] * rows.scale : 0.0f;
}

__global__ void drop_floats(float* x, DropRows rows) {
  each_lane(rows, [&](int64_t at, int count, const uint32_t(&halves)[2 * kLaneValues]) {
    float lane[kLaneValues];
    load_lane(lane, x + at, count);
    drop(lane, halves, rows);
    store_lane(x + at, lane, count);
  });
}

__global__ void drop_halves(uint16_t* x, HalfType type, DropRows rows) {
  each_lane(rows, [&](int64_t at, int count, const uint32_t(&halves)[2 * kLaneValues]) {
    float lane[kLaneValues];
    load_widened(lane, x + at, type, count);
    drop(lane, halves, rows);
    store_narrowed(x + at, lane, type, count);
  });
}

int blocks_of(const DropRows& rows) {
  return thread_blocks(rows.rows * ((rows.cols + kLaneValues - 1) / kLaneValues) * kLaneValues);
}

}  // namespace

cudaError_t launch_drop_floats(float* x, const DropRows& rows, cudaStream_t stream) {
  if (rows.rows == 0 || rows.cols == 0) return cudaSuccess;
  TESSERA_LAUNCH(drop_floats, blocks_of(rows), kThreads, stream, x, rows);
  return cudaGetLastError();
}

cudaError_t launch_drop_halves(uint16_t* x, HalfType type, const DropRows& rows, cudaStream_t stream) {
  if (rows.rows == 0 || rows.cols == 0) return cudaSuccess;
  TESSERA_LAUNCH(drop_halves, blocks_of(rows), kThreads, stream, x, type, rows);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
