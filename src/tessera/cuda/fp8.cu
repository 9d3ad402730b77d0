// Matrices of 8-bit floats with a scale a tile (ops/eight_bit.h). A tile that fits a multiprocessor's cache has one thread block,
// which reads it twice; larger ones (a whole tensor) are divided among many, which meet in an atomic maximum.
#include "tessera/cuda/fused.cuh"
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/lanes.cuh"

namespace tessera::cuda {

namespace {

constexpr float kLeastScale = 1e-12f;
constexpr int64_t kOneBlock = 1 << 14;  // values of a tile that one thread block takes: 64 KiB
constexpr uint8_t kNaN = 0x7f;          // in both formats

/// The fields of a format (ops/eight_bit.cpp). Magnitudes below `normal` are rounded by adding `magic`, whose last bit is the
/// smallest subnormal; others by the bits that are cut off.
struct Format {
  int cut;            // mantissa bits that a float has more
  uint32_t rebias;    // the difference of the exponent biases, as float bits
  float normal;       // the smallest normal value
  float magic, top;   // top: the largest finite value
  uint8_t beyond;     // magnitudes from this code on are no finite numbers
  bool has_infinity;  // `beyond` is infinity, and NaN what follows
};

__host__ __device__ Format format_of(const Fp8Matrix& m) {
  if (m.e5m2) return {21, (127u - 15u) << 23, 0x1p-14f, 0x1p7f, 57344.0f, 0x7c, true};
  return {20, (127u - 7u) << 23, 0x1p-6f, 0x1p14f, 448.0f, kNaN, false};
}

/// The code nearest to a value within +-top, the even one at ties.
__device__ uint8_t encode(float x, const Format& f) {
  if (x != x) return kNaN;
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
  const float magnitude = fabsf(x);
  if (magnitude < f.normal)
    return static_cast<uint8_t>(sign | (__float_as_uint(__fadd_rn(magnitude, f.magic)) - __float_as_uint(f.magic)));
  const uint32_t bits = __float_as_uint(magnitude) - f.rebias, odd = bits >> f.cut & 1;
  return static_cast<uint8_t>(sign | (bits + (1u << (f.cut - 1)) - 1 + odd) >> f.cut);
}

__device__ float decode(uint8_t code, const Format& f) {
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude >= f.beyond)
    return __uint_as_float(sign | (f.has_infinity && magnitude == f.beyond ? 0x7f800000u : 0x7fc00000u));
  // the shifted bits are the value but for the exponent's bias, subnormals included
  const float value = __uint_as_float(magnitude << f.cut) * __uint_as_float((127u << 23) + f.rebias);
  return __uint_as_float(sign | __float_as_uint(value));
}

__host__ __device__ int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ int64_t across(const Fp8Matrix& m) { return div_up(m.cols, m.tile_cols); }
__host__ __device__ int64_t count(const Fp8Matrix& m) { return div_up(m.rows, m.tile_rows) * across(m); }
int64_t values_of_tile(const Fp8Matrix& m) {
  return (m.tile_rows < m.rows ? m.tile_rows : m.rows) * (m.tile_cols < m.cols ? m.tile_cols : m.cols);
}

struct Tile {
  int64_t first;  // offset of its first value
  int rows, cols;
};

__device__ Tile tile_at(const Fp8Matrix& m, int64_t tile) {
  const int64_t top = tile / across(m) * m.tile_rows, left = tile % across(m) * m.tile_cols;
  const int64_t rows = m.rows - top, cols = m.cols - left;
  return {top * m.cols + left, static_cast<int>(rows < m.tile_rows ? rows : m.tile_rows),
          static_cast<int>(cols < m.tile_cols ? cols : m.tile_cols)};
}

/// Calls visit(offset) for this thread's share of a tile, which the gridDim.y thread blocks of its column divide. Row and
/// column advance by additions: a division a value would cost more than the value.
template <class Visit>
__device__ void each_value(const Fp8Matrix& m, const Tile& tile, const Visit& visit) {
  const int thread = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int stride = static_cast<int>(gridDim.y * blockDim.x);
  const int down = stride / tile.cols, right = stride % tile.cols;
  int row = thread / tile.cols, col = thread % tile.cols;
  while (row < tile.rows) {
    visit(tile.first + static_cast<int64_t>(row) * m.cols + col);
    row += down, col += right;
    if (col >= tile.cols) col -= tile.cols, ++row;
  }
}

/// The largest value of all threads. All of them call it; the barrier at its end lets `warps` be used again.
__device__ float block_max(float (&warps)[kWarps], float value) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) value = fmaxf(value, warps[w]);
  __syncthreads();
  return value;
}

__device__ float magnitude_of(const float* x, const Fp8Matrix& m, const Tile& tile) {
  float most = 0;
  each_value(m, tile, [&](int64_t at) { most = fmaxf(most, fabsf(x[at])); });
  return most;
}

__device__ float scale_of(float most, const Format& f) { return fmaxf(most / f.top, kLeastScale); }

/// The code of x / scale, clamped to the format.
__device__ uint8_t encoded(float x, float scale, const Format& f) {
  const float ratio = x / scale;  // comparisons let NaN through, fminf and fmaxf would not
  return encode(ratio < -f.top ? -f.top : ratio > f.top ? f.top : ratio, f);
}

__device__ void encode_tile(uint8_t* codes, const float* x, float scale, const Fp8Matrix& m, const Tile& tile) {
  const Format f = format_of(m);
  each_value(m, tile, [&](int64_t at) { codes[at] = encoded(x[at], scale, f); });
}

__global__ void quantise_tiles(uint8_t* __restrict__ codes, float* __restrict__ scales, const float* __restrict__ x,
                               Fp8Matrix m) {
  __shared__ float warps[kWarps];
  for (int64_t t = blockIdx.x; t < count(m); t += gridDim.x) {
    const Tile tile = tile_at(m, t);
    const float scale = scale_of(block_max(warps, magnitude_of(x, m, tile)), format_of(m));
    if (threadIdx.x == 0) scales[t] = scale;
    encode_tile(codes, x, scale, m, tile);
  }
}

/// Magnitudes are no less than zero, so their bits have their order. `maxima` begin as zeros.
__global__ void find_maxima(unsigned* __restrict__ maxima, const float* __restrict__ x, Fp8Matrix m) {
  __shared__ float warps[kWarps];
  for (int64_t t = blockIdx.x; t < count(m); t += gridDim.x) {
    const float most = block_max(warps, magnitude_of(x, m, tile_at(m, t)));
    if (threadIdx.x == 0) atomicMax(maxima + t, __float_as_uint(most));
  }
}

__global__ void make_scales(float* scales, Fp8Matrix m) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < count(m); t += stride)
    scales[t] = scale_of(scales[t], format_of(m));
}

__global__ void encode_tiles(uint8_t* __restrict__ codes, const float* __restrict__ scales, const float* __restrict__ x,
                             Fp8Matrix m) {
  for (int64_t t = blockIdx.x; t < count(m); t += gridDim.x) encode_tile(codes, x, scales[t], m, tile_at(m, t));
}

__global__ void decode_tiles(float* __restrict__ out, const uint8_t* __restrict__ codes,
                             const float* __restrict__ scales, Fp8Matrix m) {
  const Format f = format_of(m);
  for (int64_t t = blockIdx.x; t < count(m); t += gridDim.x) {
    const float scale = scales[t];
    each_value(m, tile_at(m, t), [&](int64_t at) { out[at] = decode(codes[at], f) * scale; });
  }
}

// Lines of products in 8 bits (ops::QuantisedLines). A row has one thread block, which reads it twice, the second time from the
// cache. Columns take two passes: their maxima, and tiles of 64 tokens by 32 columns that are turned in shared memory.

/// What a thread has lost of the values that it quantised.
struct LostValues {
  int zeros = 0, clipped = 0;

  __device__ void add(float x, uint8_t code, float beyond) {
    zeros += (code & 0x7f) == 0 && x != 0;
    clipped += fabsf(x) > beyond;
  }
  /// Sums of whole numbers, which are exact in any order.
  __device__ void write(const ops::QuantisedLines& n) const {
    if (zeros) atomicAdd(n.counts + 1, static_cast<double>(zeros));
    if (clipped) atomicAdd(n.counts + 2, static_cast<double>(clipped));
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(n.counts, static_cast<double>(n.rows * n.width));
  }
};

__device__ float beyond(float scale, const Format& f) { return ops::kBeyondFp8 * scale * f.top; }

__global__ void quantise_rows(ops::QuantisedLines n) {
  __shared__ float warps[kWarps];
  LostValues lost;
  const Format f = format_of({0, 0, 1, 1, n.e5m2});
  for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x) {
    float most = 0;
    for (int64_t at = threadIdx.x * kLaneValues; at < n.width; at += kThreads * kLaneValues) {
      float x[kLaneValues];
      load_values(x, n.x, row * n.width + at, values_at(at, n.width));
      most = fmaxf(most, largest_magnitude(x));
    }
    const float scale = scale_of(block_max(warps, most), f);
    if (threadIdx.x == 0) n.scales[row] = scale;
    for (int64_t at = threadIdx.x * kLaneValues; at < n.stride; at += kThreads * kLaneValues) {
      float x[kLaneValues];
      uint8_t codes[kLaneValues];
      load_values(x, n.x, row * n.width + at, values_at(at, n.width));
      TESSERA_UNROLL
      for (int j = 0; j < kLaneValues; ++j) codes[j] = encoded(x[j], scale, f);
      store_lane(n.codes + row * n.stride + at, codes, values_at(at, n.stride));
      if (!n.counts) continue;
      TESSERA_UNROLL
      for (int j = 0; j < kLaneValues; ++j) lost.add(x[j], codes[j], beyond(scale, f));  // zeros beyond the row
    }
  }
  if (n.counts) lost.write(n);
}

__device__ float value_of(const ops::RowsIn& rows, int64_t at) {
  if (rows.form == ops::Form::fp32) return static_cast<const float*>(rows.data)[at];
  return widen(static_cast<const uint16_t*>(rows.data)[at], half_of(rows.form));
}

constexpr int kRowsOfMaximum = 256;  // that a thread goes down a column

/// `scales` begin as zeros.
__global__ void find_column_maxima(ops::QuantisedLines n) {
  const int64_t across_all = div_up(n.width, kThreads), parts = across_all * div_up(n.rows, kRowsOfMaximum);
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const int64_t column = part % across_all * kThreads + threadIdx.x, first = part / across_all * kRowsOfMaximum,
                  last = first + kRowsOfMaximum < n.rows ? first + kRowsOfMaximum : n.rows;
    if (column >= n.width) continue;
    float most = 0;
    for (int64_t row = first; row < last; ++row) most = fmaxf(most, fabsf(value_of(n.x, row * n.width + column)));
    atomicMax(reinterpret_cast<unsigned*>(n.scales) + column, __float_as_uint(most));
  }
}

constexpr int kTileTokens = 64, kTileColumns = 32;

__global__ void encode_columns(ops::QuantisedLines n) {
  __shared__ uint8_t turned[kTileColumns][kTileTokens + 8];  // lanes of eight codes begin at a multiple of eight
  LostValues lost;
  const Format f = format_of({0, 0, 1, 1, n.e5m2});
  const int64_t across_all = div_up(n.width, kTileColumns), tiles = across_all * div_up(n.stride, kTileTokens);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t left = tile % across_all * kTileColumns, top = tile / across_all * kTileTokens;
    const int column = static_cast<int>(threadIdx.x) % kTileColumns;
    const float scale = left + column < n.width ? n.scales[left + column] : 1.0f;
    for (int t = static_cast<int>(threadIdx.x) / kTileColumns; t < kTileTokens; t += kThreads / kTileColumns) {
      const bool inside = top + t < n.rows && left + column < n.width;
      const float x = inside ? value_of(n.x, (top + t) * n.width + left + column) : 0;
      turned[column][t] = inside ? encoded(x, scale, f) : 0;
      if (n.counts) lost.add(x, turned[column][t], beyond(scale, f));
    }
    __syncthreads();
    const int line = static_cast<int>(threadIdx.x) / (kTileTokens / kLaneValues),
              at = static_cast<int>(threadIdx.x) % (kTileTokens / kLaneValues) * kLaneValues;
    if (left + line < n.width && top + at < n.stride) {
      uint8_t codes[kLaneValues];
      TESSERA_UNROLL
      for (int j = 0; j < kLaneValues; ++j) codes[j] = turned[line][at + j];
      store_lane(n.codes + (left + line) * n.stride + top + at, codes, values_at(top + at, n.stride));
    }
    __syncthreads();
  }
  if (n.counts) lost.write(n);
}

// Codes of a shard (ops::FlatLines), whose ranges begin and end anywhere in a matrix.

__device__ int64_t first_row(const ops::FlatLines& n) { return n.first / n.width; }
__device__ int64_t rows_of(const ops::FlatLines& n) { return (n.first + n.count - 1) / n.width - first_row(n) + 1; }

__device__ float value_of(const ops::FlatLines& n, int64_t at) {
  if (n.x.form != ops::Form::fp32) return value_of(n.x, at);
  return widen(high_half(static_cast<const float*>(n.x.data)[at]), HalfType::bf16);
}

__global__ void flat_row_scales(ops::FlatLines n) {
  __shared__ float warps[kWarps];
  const Format f = format_of({0, 0, 1, 1, false});
  for (int64_t line = blockIdx.x; line < rows_of(n); line += gridDim.x) {
    const int64_t row = (first_row(n) + line) * n.width - n.first, begin = row > 0 ? row : 0,
                  end = row + n.width < n.count ? row + n.width : n.count;
    float most = 0;
    for (int64_t at = begin + threadIdx.x; at < end; at += kThreads) most = fmaxf(most, fabsf(value_of(n, at)));
    most = block_max(warps, most);
    if (threadIdx.x == 0) n.scales[line] = scale_of(most, f);
  }
}

/// `scales` begin as zeros.
__global__ void flat_column_maxima(ops::FlatLines n) {
  const int64_t across_all = div_up(n.width, kThreads), parts = across_all * div_up(rows_of(n), kRowsOfMaximum);
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const int64_t column = part % across_all * kThreads + threadIdx.x, first = part / across_all * kRowsOfMaximum,
                  last = first + kRowsOfMaximum < rows_of(n) ? first + kRowsOfMaximum : rows_of(n);
    if (column >= n.width) continue;
    float most = 0;
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = (first_row(n) + row) * n.width + column - n.first;
      if (at >= 0 && at < n.count) most = fmaxf(most, fabsf(value_of(n, at)));
    }
    atomicMax(reinterpret_cast<unsigned*>(n.scales) + column, __float_as_uint(most));
  }
}

__global__ void encode_flat(ops::FlatLines n) {
  const Format f = format_of({0, 0, 1, 1, false});
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kLaneValues;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kLaneValues; at < n.count;
       at += stride) {
    int64_t row = (n.first + at) / n.width - first_row(n), column = (n.first + at) % n.width;
    const int here = values_at(at, n.count);
    uint8_t codes[kLaneValues] = {};
#pragma unroll
    for (int j = 0; j < kLaneValues; ++j) {
      if (j < here) codes[j] = encoded(value_of(n, at + j), n.scales[n.columns ? column : row], f);
      if (++column == n.width) column = 0, ++row;
    }
    store_lane(n.codes + at, codes, here);
  }
}

/// Scales are no less than zero, so their bits have their order.
__global__ void merge_runs(ops::MergedScales scales) {
  const ops::MergedScales::Run& run = scales.at[blockIdx.y];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < run.count; i += stride)
    if (run.from)
      atomicMax(reinterpret_cast<unsigned*>(run.to) + i, __float_as_uint(run.from[i]));
    else
      run.to[i] = 0;
}

constexpr int kTurned = 64;  // of a tile, in both directions

__global__ void turn(ops::TurnedCodes n) {
  __shared__ uint8_t tile[kTurned][kTurned + 4];
  const int64_t across_all = div_up(n.width, kTurned), tiles = across_all * div_up(n.stride, kTurned);
  const int line = static_cast<int>(threadIdx.x) / kTurned, at = static_cast<int>(threadIdx.x) % kTurned;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t left = t % across_all * kTurned, top = t / across_all * kTurned;
    for (int row = line; row < kTurned; row += kThreads / kTurned) {
      const bool inside = top + row < n.rows && left + at < n.width;
      tile[row][at] = inside ? n.from[(top + row) * n.width + left + at] : 0;
    }
    __syncthreads();
    for (int column = line; column < kTurned; column += kThreads / kTurned)
      if (left + column < n.width && top + at < n.stride)
        n.to[(left + column) * n.stride + top + at] = tile[at][column];
    __syncthreads();
  }
}

/// Thread blocks: x goes over tiles, y divides each. Narrow tiles have fewer threads.
struct Shape {
  dim3 blocks;
  int threads;
};

int blocks(int64_t wanted) { return static_cast<int>(wanted < kMaxThreadBlocks ? wanted : kMaxThreadBlocks); }

Shape shape_of(const Fp8Matrix& m) {
  const int64_t tiles = count(m), values = values_of_tile(m);
  const int64_t across_tiles = tiles < kMaxThreadBlocks ? tiles : kMaxThreadBlocks;
  int64_t slices = 1;
  if (values > kOneBlock) {
    const int64_t wanted = div_up(values, kThreads * kLaneValues), room = kMaxThreadBlocks / across_tiles;
    slices = wanted < room ? wanted : room;
  }
  const int64_t threads = div_up(values, 32) * 32;
  return {dim3(static_cast<unsigned>(across_tiles), static_cast<unsigned>(slices)),
          static_cast<int>(threads < kThreads ? threads : kThreads)};
}

}  // namespace

cudaError_t launch_quantise_fp8(uint8_t* codes, float* scales, const float* x, Fp8Matrix m, cudaStream_t stream) {
  if (m.rows * m.cols == 0) return cudaSuccess;
  const Shape shape = shape_of(m);
  if (shape.blocks.y == 1) {
    TESSERA_LAUNCH(quantise_tiles, shape.blocks, shape.threads, stream, codes, scales, x, m);
    return cudaGetLastError();
  }
  if (const cudaError_t error = cudaMemsetAsync(scales, 0, static_cast<size_t>(count(m)) * sizeof(float), stream))
    return error;
  TESSERA_LAUNCH(find_maxima, shape.blocks, shape.threads, stream, reinterpret_cast<unsigned*>(scales), x, m);
  TESSERA_LAUNCH(make_scales, dim3(static_cast<unsigned>(div_up(shape.blocks.x, kThreads))), kThreads, stream, scales,
                 m);
  TESSERA_LAUNCH(encode_tiles, shape.blocks, shape.threads, stream, codes, scales, x, m);
  return cudaGetLastError();
}

cudaError_t launch_quantise_lines(const ops::QuantisedLines& n, cudaStream_t stream) {
  if (n.lines() == 0) return cudaSuccess;
  if (!n.turned) {
    TESSERA_LAUNCH(quantise_rows, blocks(n.rows), kThreads, stream, n);
    return cudaGetLastError();
  }
  if (const cudaError_t error = cudaMemsetAsync(n.scales, 0, static_cast<size_t>(n.lines()) * sizeof(float), stream))
    return error;
  if (n.rows > 0)
    TESSERA_LAUNCH(find_column_maxima, blocks(div_up(n.width, kThreads) * div_up(n.rows, kRowsOfMaximum)), kThreads,
                   stream, n);
  TESSERA_LAUNCH(make_scales, blocks(div_up(n.lines(), kThreads)), kThreads, stream, n.scales,
                 Fp8Matrix{n.lines(), 1, 1, 1, n.e5m2});
  if (n.stride > 0)
    TESSERA_LAUNCH(encode_columns, blocks(div_up(n.width, kTileColumns) * div_up(n.stride, kTileTokens)), kThreads,
                   stream, n);
  return cudaGetLastError();
}

cudaError_t launch_flat_scales(const ops::FlatLines& n, cudaStream_t stream) {
  if (n.count == 0) return cudaSuccess;
  if (!n.columns) {
    TESSERA_LAUNCH(flat_row_scales, blocks(n.rows()), kThreads, stream, n);
    return cudaGetLastError();
  }
  if (const cudaError_t error = cudaMemsetAsync(n.scales, 0, static_cast<size_t>(n.width) * sizeof(float), stream))
    return error;
  TESSERA_LAUNCH(flat_column_maxima, blocks(div_up(n.width, kThreads) * div_up(n.rows(), kRowsOfMaximum)), kThreads,
                 stream, n);
  TESSERA_LAUNCH(make_scales, blocks(div_up(n.width, kThreads)), kThreads, stream, n.scales,
                 Fp8Matrix{n.width, 1, 1, 1, false});
  return cudaGetLastError();
}

cudaError_t launch_flat_codes(const ops::FlatLines& n, cudaStream_t stream) {
  if (n.count == 0) return cudaSuccess;
  TESSERA_LAUNCH(encode_flat, blocks(div_up(n.count, kThreads * kLaneValues)), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_merge_scales(const ops::MergedScales& scales, cudaStream_t stream) {
  int64_t most = 0;
  for (int r = 0; r < scales.count; ++r) most = most < scales.at[r].count ? scales.at[r].count : most;
  if (most == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks(div_up(most, kThreads))), static_cast<unsigned>(scales.count));
  TESSERA_LAUNCH(merge_runs, grid, kThreads, stream, scales);
  return cudaGetLastError();
}

cudaError_t launch_turn_codes(const ops::TurnedCodes& n, cudaStream_t stream) {
  if (n.width * n.stride == 0) return cudaSuccess;
  TESSERA_LAUNCH(turn, blocks(div_up(n.width, kTurned) * div_up(n.stride, kTurned)), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_dequantise_fp8(float* out, const uint8_t* codes, const float* scales, Fp8Matrix m,
                                  cudaStream_t stream) {
  if (m.rows * m.cols == 0) return cudaSuccess;
  const Shape shape = shape_of(m);
  TESSERA_LAUNCH(decode_tiles, shape.blocks, shape.threads, stream, out, codes, scales, m);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
