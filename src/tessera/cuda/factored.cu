// Adafactor and CAME (ops/factored.h): sums over rows and columns of a slice, and their updates in one pass over memory. A
// thread adds all of a row, or a group of rows of a column, in order, so sums depend on no launch.
#include <algorithm>

#include "tessera/cuda/forms.cuh"
#include "tessera/cuda/squares.cuh"

namespace tessera::cuda {

namespace {

using ops::ClippedSlice;
using ops::FactoredPlace;

constexpr int kRowThreads = 128;  // of a thread block that adds rows: four warps
constexpr int kColumns =
    32;  // of a thread block that adds columns: those of a small matrix are on many multiprocessors
constexpr int kGroupsAtOnce = 8;  // ... and groups of rows of each
constexpr int kColumnThreads = kColumns * kGroupsAtOnce;

/// The place in the whole tensor of an element of this rank's part.
__device__ int64_t in_tensor(const FactoredPlace& p, int64_t element) {
  if (p.width == 0) return element;
  return element / p.width * p.inner + p.first + element % p.width;
}
/// How many elements of the part come before a place in the tensor.
__device__ int64_t before(const FactoredPlace& p, int64_t whole) {
  if (p.width == 0) return whole;
  const int64_t inside = whole % p.inner - p.first;
  return whole / p.inner * p.width + (inside < 0 ? 0 : inside > p.width ? p.width : inside);
}
__device__ int64_t all_rows(const FactoredPlace& p) { return p.matrices * p.rows; }

/// The product of an element's factors, for elements that are asked for in ascending order.
class FactorsOf {
 public:
  __device__ FactorsOf(const FactoredPlace& place, const float* factors)
      : place_(place), rows_(factors), columns_(factors + all_rows(place)) {}
  /// Of element i of the slice.
  __device__ float operator()(int64_t i) {
    column_ += i - at_;
    at_ = i;
    if (place_.width > 0 || column_ >= place_.columns) {
      const int64_t whole = in_tensor(place_, place_.begin + i), row = whole / place_.columns;
      column_ = whole - row * place_.columns;
      of_row_ = rows_[row], of_columns_ = columns_ + row / place_.rows * place_.columns;
    }
    return of_row_ * of_columns_[column_];
  }

 private:
  const FactoredPlace& place_;
  const float *rows_, *columns_, *of_columns_ = nullptr;
  float of_row_ = 0;
  int64_t at_ = 0, column_ = INT64_MAX / 2;
};

__device__ float gradient_at(const ops::GradientRange& g, int64_t i) {
  if (g.fp32) return g.fp32[i];
  return g.bf16 ? from_bf16(g.bf16[i]) : from_fp16(g.fp16[i]);
}
__device__ float moment_at(const DeviceMoment& m, const float (&map)[256], int64_t i) {
  if (m.fp32) return m.fp32[i];
  return m.bf16 ? from_bf16(m.bf16[i]) : map[m.codes[i]] * m.scales[i / kBlockValues];
}

/// v of an element that is not factored, after the step.
__device__ float moved_second(const ClippedSlice& s, float old, float gradient) {
  return old * s.keep + (gradient * gradient + s.eps) * s.take;
}

__device__ double larger(double least, double x) { return least < x ? x : least; }
__device__ float clip_of(const ClippedSlice& s) {
  const double rms = sqrt(static_cast<double>(*s.squares) / s.numel);
  return static_cast<float>(1 / larger(1, rms / s.clip_threshold));
}

/// The divided gradient of element i; i ascends.
class Divided {
 public:
  __device__ explicit Divided(const ClippedSlice& s) : s_(s), factors_(s.place, s.factors) {}
  __device__ float operator()(int64_t i) {
    const float scaled = gradient_at(s_.gradient, i) * s_.scale;
    if (s_.place.matrices > 0) return scaled * factors_(i);
    return scaled / sqrtf(moved_second(s_, s_.second[i], scaled));
  }

 private:
  const ClippedSlice& s_;
  FactorsOf factors_;
};

/// Values of elements that rows and columns sum, by their place among the factors.
struct Squares {
  const ClippedSlice& s;
  __device__ float operator()(int64_t i, int64_t, int64_t) const {
    const float scaled = gradient_at(s.gradient, i) * s.scale;
    return scaled * scaled + s.eps;
  }
};
struct Residuals {
  const ClippedSlice& s;
  const DeviceMoment& first;
  const float (&map)[256];
  float keep, take, eps, clip;
  __device__ float operator()(int64_t i, int64_t row, int64_t column) const {
    float update = gradient_at(s.gradient, i) * s.scale;
    update *= s.factors[row] * s.factors[all_rows(s.place) + column];
    update *= clip;
    const float off = update - (moment_at(first, map, i) * keep + update * take);
    return off * off + eps;
  }
};

/// A warp has 32 rows, a lane one of them: 32 columns are read at a time, each row by all lanes, and added in order. As on the
/// CPU the elements of a block of 256 in a row have a sum of their own, as have the columns of a rank where it has a part.
template <class Value>
__device__ void add_rows(const FactoredPlace& p, double* sums, const Value& value) {
  __shared__ float tile[kRowThreads / 32][32][33];
  __shared__ int64_t first[kRowThreads / 32][32], last[kRowThreads / 32][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t end = p.begin + p.count, low = in_tensor(p, p.begin) / p.columns,
                high = in_tensor(p, end - 1) / p.columns + 1;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowThreads;
  for (int64_t rows = low + static_cast<int64_t>(blockIdx.x) * kRowThreads + warp * 32; rows < high; rows += stride) {
    const int64_t row = rows + lane;
    int64_t from = 0, to = 0;
    if (row < high) {
      from = before(p, row * p.columns), to = before(p, (row + 1) * p.columns);
      from = from < p.begin ? p.begin : from, to = to > end ? end : to;
    }
    first[warp][lane] = from, last[warp][lane] = to;
    __syncwarp();
    int64_t most = 0;
    for (int j = 0; j < 32; ++j) {
      const int64_t length = last[warp][j] - first[warp][j];
      most = length > most ? length : most;
    }
    double total = row < high ? sums[row] : 0, sum = 0;
    for (int64_t t = 0; t < most; t += 32) {
      for (int j = 0; j < 32; ++j) {
        const int64_t element = first[warp][j] + t + lane;
        if (element >= last[warp][j]) continue;
        const int64_t r = rows + j;
        const int64_t column = in_tensor(p, element) - r * p.columns + r / p.rows * p.columns;
        tile[warp][j][lane] = value(element - p.begin, r, column);
      }
      __syncwarp();
      for (int k = 0; k < 32; ++k) {
        const int64_t element = from + t + k;
        if (element >= to) break;
        if ((element - p.begin) % kBlockValues == 0 || (p.width > 0 && element % p.width == 0)) total += sum, sum = 0;
        sum += static_cast<double>(tile[warp][lane][k]);
      }
      __syncwarp();  // the tile is read
    }
    if (row < high) sums[row] = total + sum;
    __syncwarp();  // the borders are read
  }
}

/// A thread block has 32 columns, and eight groups of rows of each at once: a thread adds those of a group in order, reading eight
/// ahead, and one of a column's threads adds its groups in order.
template <class Value>
__device__ void add_columns(const FactoredPlace& p, double* sums, const Value& value) {
  constexpr int kAhead = 8;
  __shared__ double parts[kGroupsAtOnce][kColumns];
  const int lane = threadIdx.x % kColumns, own = threadIdx.x / kColumns;
  const int64_t end = p.begin + p.count, low = in_tensor(p, p.begin) / p.columns,
                high = in_tensor(p, end - 1) / p.columns + 1;
  const int64_t groups = (p.rows + ops::kRowGroup - 1) / ops::kRowGroup, all = p.matrices * p.columns;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns; first < all;
       first += static_cast<int64_t>(gridDim.x) * kColumns) {
    const int64_t c = first + lane, matrix = c / p.columns, column = c - matrix * p.columns;
    double total = own == 0 && c < all ? sums[all_rows(p) + c] : 0;
    for (int64_t group = 0; group < groups; group += kGroupsAtOnce) {
      const int64_t begin = matrix * p.rows + (group + own) * ops::kRowGroup,
                    most = (matrix + 1) * p.rows < high ? (matrix + 1) * p.rows : high;
      const int64_t from = begin < low ? low : begin, to = c >= all                        ? 0
                                                           : begin + ops::kRowGroup < most ? begin + ops::kRowGroup
                                                                                           : most;
      double sum = 0;
      for (int64_t row = from; row < to; row += kAhead) {
        float ahead[kAhead];
        bool there[kAhead];
        for (int j = 0; j < kAhead; ++j) {
          const int64_t whole = (row + j) * p.columns + column;
          const int64_t element = before(p, whole);
          there[j] =
              row + j < to && element >= p.begin && element < end && (p.width == 0 || in_tensor(p, element) == whole);
          ahead[j] = there[j] ? value(element - p.begin, row + j, c) : 0;
        }
        for (int j = 0; j < kAhead; ++j)
          if (there[j]) sum += static_cast<double>(ahead[j]);
      }
      parts[own][lane] = sum;
      __syncthreads();
      for (int j = 0; own == 0 && j < kGroupsAtOnce; ++j) total += parts[j][lane];
      __syncthreads();  // they are added
    }
    if (own == 0 && c < all) sums[all_rows(p) + c] = total;
  }
}

__global__ void __launch_bounds__(kRowThreads, 2) row_sums(ClippedSlice s, double* sums) {
  add_rows(s.place, sums, Squares{s});
}
__global__ void __launch_bounds__(kColumnThreads, 2) column_sums(ClippedSlice s, double* sums) {
  add_columns(s.place, sums, Squares{s});
}

__device__ void load_any_map(float (&map)[256], const DeviceMoment& m) {
  for (unsigned i = threadIdx.x; m.codes && i < 256; i += blockDim.x) map[i] = m.map[i];
  __syncthreads();
}
__global__ void __launch_bounds__(kRowThreads, 2)
    residual_rows(ClippedSlice s, DeviceMoment first, float keep, float take, float eps, double* sums) {
  __shared__ float map[256];
  load_any_map(map, first);
  add_rows(s.place, sums, Residuals{s, first, map, keep, take, eps, clip_of(s)});
}
__global__ void __launch_bounds__(kColumnThreads, 2)
    residual_columns(ClippedSlice s, DeviceMoment first, float keep, float take, float eps, double* sums) {
  __shared__ float map[256];
  load_any_map(map, first);
  add_columns(s.place, sums, Residuals{s, first, map, keep, take, eps, clip_of(s)});
}

__global__ void __launch_bounds__(kThreads, 2) divided_squares(double* __restrict__ partials, ClippedSlice s) {
  __shared__ double sums[kWarps][32];
  partial_squares(partials, sums, s.place.count, Divided(s));
}

struct Masters {
  DeviceMasters p;
  __device__ float operator()(int64_t i) const {
    if (p.fp32) return p.fp32[i];
    if (!p.low) return from_bf16(p.bf16[i]);
    return __uint_as_float((static_cast<uint32_t>(p.bf16[i]) - (p.low[i] >> 15)) << 16 | p.low[i]);
  }
};
__global__ void __launch_bounds__(kThreads, 2)
    master_squares(double* __restrict__ partials, DeviceMasters p, int64_t n) {
  __shared__ double sums[kWarps][32];
  partial_squares(partials, sums, n, Masters{p});
}

/// States and, in place of the sums, the means; of columns their factors at once.
__global__ void move_means(ops::FactoredMeans m) {
  const FactoredPlace& p = m.place;
  const int64_t rows = all_rows(p), n = rows + p.matrices * p.columns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    float* state = i < rows ? m.rows + i : m.columns + (i - rows);
    const auto of = static_cast<double>(i < rows ? p.columns : p.rows);
    const float now = static_cast<float>(*state * m.beta + m.sums[i] / of * (1 - m.beta));
    *state = now;
    m.sums[i] = i < rows ? now : static_cast<float>(1 / sqrt(static_cast<double>(now)));
  }
}

/// A thread block has a matrix: one thread adds its rows, the others read ahead.
__global__ void row_factors(ops::FactoredMeans m) {
  __shared__ float ahead[kThreads];
  __shared__ double mean;
  const int64_t rows = m.place.rows;
  const int own = threadIdx.x;
  for (int64_t matrix = blockIdx.x; matrix < m.place.matrices; matrix += gridDim.x) {
    float* sums = m.sums + matrix * rows;
    double total = 0;
    for (int64_t first = 0; first < rows; first += kThreads) {
      if (first + own < rows) ahead[own] = sums[first + own];
      __syncthreads();
      for (int i = 0; own == 0 && i < kThreads && first + i < rows; ++i) total += static_cast<double>(ahead[i]);
      __syncthreads();  // they are added
    }
    if (own == 0) mean = total / static_cast<double>(rows);
    __syncthreads();
    for (int64_t i = own; i < rows; i += kThreads) sums[i] = static_cast<float>(1 / sqrt(sums[i] / mean));
    __syncthreads();  // the mean is read
  }
}

/// The divided gradient of a lane, and v where it is not factored.
__device__ void divide(float (&out)[kLaneValues], const ClippedSlice& s, FactorsOf& factors, const BlockOfWarp& block) {
  load(out, s.gradient, block);
  if (s.place.matrices > 0) {
    for (int j = 0; j < kLaneValues; ++j)
      if (j < block.count()) out[j] = out[j] * s.scale * factors(block.at() + j);
    return;
  }
  float second[kLaneValues];
  load_lane(second, s.second + block.at(), block.count());
  for (int j = 0; j < kLaneValues; ++j) {
    const float scaled = out[j] * s.scale;
    second[j] = moved_second(s, second[j], scaled);
    out[j] = scaled / sqrtf(second[j]);
  }
  store_lane(s.second + block.at(), second, block.count());
}

struct AdafactorNumbers {
  bool has_first;
  float keep, take;
  double lr, weight_decay, least;
  const float* size;
};

__global__ void __launch_bounds__(kThreads, 2)
    adafactor(ClippedSlice s, AdafactorNumbers step, DeviceMasters p, DeviceMoment m) {
  __shared__ float map[256];
  if (step.has_first && m.codes) load_map(map, m.map);
  __syncthreads();
  double rate = step.lr;
  if (step.size) rate = step.lr * larger(step.least, sqrt(static_cast<double>(*step.size) / s.numel));
  const auto moves = static_cast<float>(rate * static_cast<double>(clip_of(s))),
             decay = static_cast<float>(1 - rate * step.weight_decay);
  FactorsOf factors(s.place, s.factors);
  for (BlockOfWarp block(s.place.count); block.inside(); block.next()) {
    float moved[kLaneValues], value[kLaneValues], first[kLaneValues];
    divide(moved, s, factors, block);
    load(value, p, block);
    if (step.has_first) load(first, m, map, block);
    for (int j = 0; j < kLaneValues; ++j) {
      moved[j] *= moves;
      if (step.has_first) moved[j] = first[j] = first[j] * step.keep + moved[j] * step.take;
      value[j] = value[j] * decay - moved[j];
      if (j >= block.count()) first[j] = 0;  // of no value, and would count in the scale
    }
    __syncwarp();  // all lanes have read the scales
    store(p, value, block);
    if (step.has_first) store(m, map, false, first, block);
  }
}

struct CameNumbers {
  float keep, take;
  const float* factors;
  float lr, decay;
};

__global__ void __launch_bounds__(kThreads, 2) came(ClippedSlice s, CameNumbers step, DeviceMasters p, DeviceMoment m) {
  __shared__ float map[256];
  if (m.codes) load_map(map, m.map);
  __syncthreads();
  const float clip = clip_of(s);
  FactorsOf factors(s.place, s.factors), residual(s.place, step.factors);
  for (BlockOfWarp block(s.place.count); block.inside(); block.next()) {
    float update[kLaneValues], value[kLaneValues], first[kLaneValues];
    divide(update, s, factors, block);
    load(value, p, block);
    load(first, m, map, block);
    for (int j = 0; j < kLaneValues; ++j) {
      if (j >= block.count()) {
        first[j] = 0;  // of no value, and would count in the scale
        continue;
      }
      update[j] *= clip;
      first[j] = first[j] * step.keep + update[j] * step.take;
      float moved = first[j];
      if (s.place.matrices > 0) moved *= residual(block.at() + j);
      value[j] = value[j] * step.decay - step.lr * moved;
    }
    __syncwarp();  // all lanes have read the scales
    store(p, value, block);
    store(m, map, false, first, block);
  }
}

int blocks_of(int64_t n, int threads) {
  return static_cast<int>(std::min<int64_t>((n + threads - 1) / threads, kMaxThreadBlocks));
}

}  // namespace

cudaError_t launch_add_row_sums(const ClippedSlice& s, double* sums, cudaStream_t stream) {
  const FactoredPlace& p = s.place;
  if (p.count == 0) return cudaSuccess;
  TESSERA_LAUNCH(row_sums, blocks_of(p.matrices * p.rows, kRowThreads), kRowThreads, stream, s, sums);
  TESSERA_LAUNCH(column_sums, blocks_of(p.matrices * p.columns, kColumns), kColumnThreads, stream, s, sums);
  return cudaGetLastError();
}

cudaError_t launch_add_residual_sums(const ClippedSlice& s, const ops::CameStep& step, DeviceMoment first, double* sums,
                                     cudaStream_t stream) {
  const FactoredPlace& p = s.place;
  if (p.count == 0) return cudaSuccess;
  TESSERA_LAUNCH(residual_rows, blocks_of(p.matrices * p.rows, kRowThreads), kRowThreads, stream, s, first, step.keep,
                 step.take, step.eps, sums);
  TESSERA_LAUNCH(residual_columns, blocks_of(p.matrices * p.columns, kColumns), kColumnThreads, stream, s, first,
                 step.keep, step.take, step.eps, sums);
  return cudaGetLastError();
}

cudaError_t launch_add_divided_squares(const ClippedSlice& s, double* sum, double* partials, cudaStream_t stream) {
  const int64_t count = partial_sums(s.place.count);
  if (count == 0) return cudaSuccess;
  TESSERA_LAUNCH(divided_squares, blocks_of(count, kWarps), kThreads, stream, partials, s);
  return launch_add_in_order(sum, partials, count, 1, /*adds=*/true, stream);
}

cudaError_t launch_add_master_squares(DeviceMasters p, int64_t n, double* sum, double* partials, cudaStream_t stream) {
  const int64_t count = partial_sums(n);
  if (count == 0) return cudaSuccess;
  TESSERA_LAUNCH(master_squares, blocks_of(count, kWarps), kThreads, stream, partials, p, n);
  return launch_add_in_order(sum, partials, count, 1, /*adds=*/true, stream);
}

cudaError_t launch_take_means(const ops::FactoredMeans& m, cudaStream_t stream) {
  const FactoredPlace& p = m.place;
  if (p.matrices == 0) return cudaSuccess;
  TESSERA_LAUNCH(move_means, blocks_of(p.matrices * (p.rows + p.columns), kThreads), kThreads, stream, m);
  TESSERA_LAUNCH(row_factors, blocks_of(p.matrices, 1), kThreads, stream, m);
  return cudaGetLastError();
}

cudaError_t launch_adafactor(const ClippedSlice& s, const ops::AdafactorStep& step, DeviceMasters p, DeviceMoment first,
                             cudaStream_t stream) {
  if (s.place.count == 0) return cudaSuccess;
  const AdafactorNumbers numbers{step.has_first,    step.keep,  step.take, step.lr,
                                 step.weight_decay, step.least, step.size};
  TESSERA_LAUNCH(adafactor, thread_blocks(s.place.count), kThreads, stream, s, numbers, p, first);
  return cudaGetLastError();
}

cudaError_t launch_came(const ClippedSlice& s, const ops::CameStep& step, DeviceMasters p, DeviceMoment first,
                        cudaStream_t stream) {
  if (s.place.count == 0) return cudaSuccess;
  const CameNumbers numbers{step.keep, step.take, step.factors, step.lr, step.decay};
  TESSERA_LAUNCH(came, thread_blocks(s.place.count), kThreads, stream, s, numbers, p, first);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
