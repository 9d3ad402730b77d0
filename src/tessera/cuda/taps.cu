// Depthwise convolutions over rows by a table of taps, forward and backward: twins of ops/fused.h. A warp has 256 channels of
// neighbouring rows, and the warps of a thread block have the strips beside its own: what their taps share is read from memory
// once, and from the cache by each. Weights, or the sums of their gradients, stay in registers.
#include "tessera/cuda/fused.cuh"

namespace tessera::cuda {

namespace {

constexpr int kStripRows = 16, kTapsAtOnce = 3;
// Half a usual thread block: with 168 registers a thread, three of them are on a multiprocessor.
constexpr int kStripThreads = 128, kStripWarps = kStripThreads / 32;

__device__ int64_t first_strip() { return static_cast<int64_t>(blockIdx.x) * kStripWarps + threadIdx.x / 32; }
__device__ int64_t next_strip() { return static_cast<int64_t>(gridDim.x) * kStripWarps; }

/// Rows that a warp has, one after the other: a whole group where it leaves the sums of columns.
__host__ __device__ inline int64_t rows_of_strip(const ops::DepthwiseRows& n) {
  return n.columns ? ops::kGroupTokens : kStripRows;
}
__host__ __device__ inline int64_t strips_of(const ops::DepthwiseRows& n) {
  return (n.table.rows + rows_of_strip(n) - 1) / rows_of_strip(n);
}
__host__ __device__ inline int64_t groups_of(const ops::TapTable& table) {
  return (table.rows + ops::kGroupTokens - 1) / ops::kGroupTokens;
}

/// The weights of a lane's channels, of w [width, taps].
template <int kTaps>
__device__ void load_weights(float (&w)[kTaps][kLaneValues], const RowsIn& from, int64_t column, int count) {
  TESSERA_UNROLL
  for (int part = 0; part < kTaps; ++part) {
    float values[kLaneValues];
    const int left = count * kTaps - part * kLaneValues;
    load_values(values, from, column * kTaps + part * kLaneValues,
                left < 0             ? 0
                : left < kLaneValues ? left
                                     : kLaneValues);
    TESSERA_UNROLL
    for (int j = 0; j < kLaneValues; ++j)
      w[(part * kLaneValues + j) % kTaps][(part * kLaneValues + j) / kTaps] = values[j];
  }
}

/// Three taps of x, those that are there: the others have no values and are not used.
struct Sources {
  int row[kTapsAtOnce];
  __device__ Sources(const ops::TapTable& table, int tap, int64_t row_of_y) {
    for (int a = 0; a < kTapsAtOnce; ++a) row[a] = table.source[(tap + a) * table.rows + row_of_y];
  }
  __device__ void load(float (&x)[kTapsAtOnce][kLaneValues], const RowsIn& from, int64_t width, int64_t column,
                       int count) const {
    TESSERA_UNROLL
    for (int a = 0; a < kTapsAtOnce; ++a)
      load_values(x[a], from, (row[a] < 0 ? 0 : row[a]) * width + column, row[a] < 0 ? 0 : count);
  }
};

__device__ void activate(float (&x)[kTapsAtOnce][kLaneValues]) {
  TESSERA_UNROLL
  for (int a = 0; a < kTapsAtOnce; ++a)
    for (int j = 0; j < kLaneValues; ++j) x[a][j] *= sigmoid(x[a][j]);
}

template <int kTaps>
__global__ void __launch_bounds__(kStripThreads, 3) depthwise_rows(ops::DepthwiseRows n) {
  const int64_t slices = (n.width + kBlockValues - 1) / kBlockValues, strips = strips_of(n);
  for (int64_t i = first_strip(); i < slices * strips; i += next_strip()) {
    const int64_t column = i / strips * kBlockValues + WarpOfRow::thread() * kLaneValues;
    const int count = values_at(column, n.width);
    float w[kTaps][kLaneValues], bias[kLaneValues];
    load_weights(w, n.w, column, count);
    load_values(bias, n.bias, column, n.bias.data ? count : 0);
    const int64_t begin = i % strips * rows_of_strip(n),
                  end = begin + rows_of_strip(n) < n.table.rows ? begin + rows_of_strip(n) : n.table.rows;
    float columns[kLaneValues] = {};
    for (int64_t r = begin; r < end; ++r) {
      float y[kLaneValues];
      for (int j = 0; j < kLaneValues; ++j) y[j] = bias[j];
      TESSERA_UNROLL
      for (int t = 0; t < kTaps; t += kTapsAtOnce) {
        const Sources sources(n.table, t, r);
        float x[kTapsAtOnce][kLaneValues];
        sources.load(x, n.x, n.width, column, count);
        if (n.silu) activate(x);
        TESSERA_UNROLL
        for (int a = 0; a < kTapsAtOnce; ++a)
          for (int j = 0; j < kLaneValues; ++j)
            if (sources.row[a] >= 0) y[j] += x[a][j] * w[t + a][j];
      }
      if (n.through.data) {
        float through[kLaneValues];
        load_values(through, n.through, r * n.width + column, count);
        for (int j = 0; j < kLaneValues; ++j) y[j] *= silu_slope(through[j]);
      }
      if (n.value.data) {
        float value[kLaneValues];
        load_values(value, n.value, r * n.width + column, count);
        if (n.up.data) {
          float up[kLaneValues];
          load_values(up, n.up, r * n.width + column, count);
          for (int j = 0; j < kLaneValues; ++j) {
            const float result = y[j];
            y[j] = up[j] * value[j] * silu_slope(result);
            value[j] = up[j] * (result * sigmoid(result));
          }
          store_values(n.d_value, value, r * n.width + column, count);
        } else {
          for (int j = 0; j < kLaneValues; ++j) y[j] = value[j] * (y[j] * sigmoid(y[j]));
        }
      }
      for (int j = 0; j < kLaneValues; ++j) columns[j] += y[j];
      store_values(n.y, y, r * n.width + column, count);
    }
    if (n.columns) store_lane(n.columns + i % strips * n.width + column, columns, count);
  }
}

template <int kTaps>
__global__ void __launch_bounds__(kStripThreads, 3) depthwise_back(ops::DepthwiseGradients n) {
  const int64_t slices = (n.width + kBlockValues - 1) / kBlockValues, groups = groups_of(n.table);
  for (int64_t i = first_strip(); i < slices * groups; i += next_strip()) {
    const int64_t column = i / groups * kBlockValues + WarpOfRow::thread() * kLaneValues, group = i % groups;
    const int count = values_at(column, n.width);
    const int64_t begin = group * ops::kGroupTokens,
                  end = begin + ops::kGroupTokens < n.table.rows ? begin + ops::kGroupTokens : n.table.rows;
    float dw[kTaps][kLaneValues] = {}, db[kLaneValues] = {};
    for (int64_t r = begin; r < end; ++r) {
      float dy[kLaneValues];
      load_values(dy, n.dy, r * n.width + column, count);
      for (int j = 0; j < kLaneValues; ++j) db[j] += dy[j];
      TESSERA_UNROLL
      for (int t = 0; t < kTaps; t += kTapsAtOnce) {
        const Sources sources(n.table, t, r);
        float x[kTapsAtOnce][kLaneValues];
        sources.load(x, n.x, n.width, column, count);
        if (n.silu) activate(x);
        TESSERA_UNROLL
        for (int a = 0; a < kTapsAtOnce; ++a)
          for (int j = 0; j < kLaneValues; ++j)
            if (sources.row[a] >= 0) dw[t + a][j] += dy[j] * x[a][j];
      }
    }
    float* to = n.partials + group * (kTaps + 1) * n.width + column;
    TESSERA_UNROLL
    for (int t = 0; t < kTaps; ++t) store_lane(to + t * n.width, dw[t], count);
    store_lane(to + kTaps * n.width, db, count);
  }
}

/// Adds the sums of groups to dw and db: a thread has a channel of a tap, and asks for sixteen groups ahead.
__global__ void add_taps(ops::DepthwiseGradients n) {
  constexpr int kAhead = 16;
  const int64_t size = (n.table.taps + 1) * n.width, groups = groups_of(n.table);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    float total = 0;
    for (int64_t g = 0; g < groups; g += kAhead) {
      float ahead[kAhead];
      for (int j = 0; j < kAhead; ++j) ahead[j] = g + j < groups ? n.partials[(g + j) * size + i] : 0.0f;
      for (int j = 0; j < kAhead; ++j)
        if (g + j < groups) total += ahead[j];
    }
    const int64_t tap = i / n.width, column = i % n.width;
    if (tap < n.table.taps && n.dw) n.dw[column * n.table.taps + tap] += total;
    if (tap == n.table.taps && n.db) n.db[column] += total;
  }
}

__global__ void invert_entries(ops::InvertedTaps n) {
  const int64_t entries = n.table.taps * n.table.rows;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < entries;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int source = n.table.source[i];
    if (source >= 0) n.inverse[i / n.table.rows * n.table.sources + source] = static_cast<int>(i % n.table.rows);
  }
}

/// Calls launch(the number of taps) where there is a kernel of so many.
template <class Launch>
cudaError_t by_taps(int taps, const Launch& launch) {
  if (taps == 9)
    launch(std::integral_constant<int, 9>{});
  else if (taps == 3)
    launch(std::integral_constant<int, 3>{});
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}
static_assert(ops::has_taps(9) && ops::has_taps(3));

int64_t slices_of(int64_t width) { return (width + kBlockValues - 1) / kBlockValues; }

}  // namespace

cudaError_t launch_depthwise(const ops::DepthwiseRows& n, cudaStream_t stream) {
  if (n.table.rows == 0) return cudaSuccess;
  return by_taps(n.table.taps, [&](auto taps) {
    TESSERA_LAUNCH(depthwise_rows<taps.value>, blocks_of_rows(slices_of(n.width) * strips_of(n), kStripWarps),
                   kStripThreads, stream, n);
  });
}

cudaError_t launch_depthwise_gradients(const ops::DepthwiseGradients& n, cudaStream_t stream) {
  if (n.table.rows == 0) return cudaSuccess;
  const cudaError_t error = by_taps(n.table.taps, [&](auto taps) {
    TESSERA_LAUNCH(depthwise_back<taps.value>, blocks_of_rows(slices_of(n.width) * groups_of(n.table), kStripWarps),
                   kStripThreads, stream, n);
  });
  if (error != cudaSuccess) return error;
  TESSERA_LAUNCH(add_taps, blocks_of_rows((n.table.taps + 1) * n.width, kThreads), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_invert_taps(const ops::InvertedTaps& n, cudaStream_t stream) {
  const int64_t entries = n.table.taps * n.table.rows;
  const cudaError_t error =
      cudaMemsetAsync(n.inverse, 0xff, static_cast<size_t>(n.table.taps * n.table.sources) * sizeof(int32_t), stream);
  if (error != cudaSuccess || entries == 0) return error;
  TESSERA_LAUNCH(invert_entries, blocks_of_rows(entries, kThreads), kThreads, stream, n);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
