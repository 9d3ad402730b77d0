#pragma once
// Rows in registers, for the operators of ops/fused.h: who has a row, its loads and stores, and sums along it in the order of
// [Note: order of sums in rows].
//
//   __shared__ WarpSums shared;
//   RowSums<Owner> sums(shared);
//   for (int64_t t = Owner::first(); t < tokens; t += Owner::step()) {
//     float x[K][kLaneValues];
//     load_row<Owner>(x, rows.x, t, width);
//     ...
//   }
#include <algorithm>

#include "tessera/cuda/halves.cuh"

namespace tessera::cuda {

using ops::Angles;
using ops::Form;
using ops::RowsIn;
using ops::RowsOut;
using ops::RowTable;
using ops::TableRuns;
using ops::TableSums;

/// The threads that have a row, or a group of rows: a thread block, each thread K lanes of eight columns.
struct BlockOfRow {
  static constexpr int kThreadsOfRow = kThreads, kRowsAtOnce = 1;
  __device__ static int64_t first() { return blockIdx.x; }
  __device__ static int64_t step() { return gridDim.x; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
};
/// A warp, for rows of at most 256 columns: the other warps of a block would have zeros to add.
struct WarpOfRow {
  static constexpr int kThreadsOfRow = 32, kRowsAtOnce = kWarps;
  __device__ static int64_t first() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }
  __device__ static int64_t step() { return static_cast<int64_t>(gridDim.x) * kWarps; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x % 32); }
};

template <class Owner>
__device__ int64_t column_of(int k) {
  return static_cast<int64_t>(k * Owner::kThreadsOfRow + Owner::thread()) * kLaneValues;
}
/// Values of the lane that begins at `column`: 8, but for the last of a row, and 0 beyond it.
__device__ inline int values_at(int64_t column, int64_t width) {
  const int64_t left = width - column;
  return left >= kLaneValues ? kLaneValues : left > 0 ? static_cast<int>(left) : 0;
}

__device__ inline HalfType half_of(Form form) { return form == Form::bf16 ? HalfType::bf16 : HalfType::fp16; }

/// Values beyond `count` are zero.
__device__ inline void load_values(float (&values)[kLaneValues], const RowsIn& from, int64_t at, int count) {
  if (from.form == Form::fp32)
    load_lane(values, static_cast<const float*>(from.data) + at, count);
  else
    load_widened(values, static_cast<const uint16_t*>(from.data) + at, half_of(from.form), count);
}
__device__ inline void store_values(const RowsOut& to, const float (&values)[kLaneValues], int64_t at, int count) {
  if (to.form == Form::fp32)
    store_lane(static_cast<float*>(to.data) + at, values, count);
  else
    store_narrowed(static_cast<uint16_t*>(to.data) + at, values, half_of(to.form), count);
}

template <class Owner, int K>
__device__ void load_row(float (&values)[K][kLaneValues], const RowsIn& from, int64_t row, int64_t width) {
  TESSERA_UNROLL
  for (int k = 0; k < K; ++k) {
    const int64_t column = column_of<Owner>(k);
    load_values(values[k], from, row * width + column, values_at(column, width));
  }
}

struct WarpSums {
  float of[2][kWarps];
};

/// Sums over the threads of a row. Blocks take turns with two rows of shared memory, so that one barrier is enough.
template <class Owner>
class RowSums {
 public:
  __device__ explicit RowSums(WarpSums& shared) : shared_(shared) {}
  /// Every thread of the row calls it and gets the sum of what each brought.
  __device__ float operator()(float value) {
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
    if (Owner::kThreadsOfRow == 32) return value;
    float(&warps)[kWarps] = shared_.of[turn_];
    turn_ = 1 - turn_;
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float total = warps[0];
    for (int w = 1; w < kWarps; ++w) total += warps[w];
    return total;
  }

 private:
  WarpSums& shared_;
  int turn_ = 0;
};

/// Row `index` of a table, and that of a token.
__device__ inline RowsIn row_of(const RowTable& table, int64_t index) {
  return {static_cast<const char*>(table.values) + index * table.stride * (table.form == Form::fp32 ? 4 : 2),
          table.form};
}
__device__ inline RowsIn table_row(const RowTable& table, const TableRuns& runs, int64_t token) {
  int i = 0;
  while (runs.at[i].end <= token) ++i;
  return row_of(table, runs.at[i].row);
}

struct Group {
  int row;
  int64_t begin, end;  ///< of its tokens
};
__device__ inline Group group_of(const TableRuns& runs, int64_t index) {
  int i = 0;
  while (i + 1 < runs.count && runs.at[i + 1].groups <= index) ++i;
  const int64_t begin = runs.at[i].begin + (index - runs.at[i].groups) * ops::kGroupTokens,
                end = begin + ops::kGroupTokens;
  return {runs.at[i].row, begin, end < runs.at[i].end ? end : runs.at[i].end};
}

/// exp_fast of ops/kernel.h.
__device__ inline float exp_fast(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float n = rintf(x * 1.44269504f), r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * __uint_as_float((static_cast<uint32_t>(static_cast<int>(n)) + 127u) << 23);
}
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exp_fast(-x)); }
__device__ inline float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

/// Whole rows for a thread block each, or for a warp each.
inline int blocks_of_rows(int64_t rows, int64_t rows_at_once) {
  return static_cast<int>(std::min<int64_t>((rows + rows_at_once - 1) / rows_at_once, kMaxThreadBlocks));
}

}  // namespace tessera::cuda
