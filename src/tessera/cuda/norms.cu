// LayerNorm and RMSNorm with its rotary embedding, forward and backward: twins of ops/fused.h. A row stays in registers
// between one load and one store; a backward goes through groups of 64 tokens, and keeps the sums of its tables in registers.
#include "tessera/cuda/fused.cuh"

namespace tessera::cuda {

namespace {

template <class Owner, int K>
__global__ void __launch_bounds__(kThreads, 4) layer_norm_rows(ops::LayerNormRows n) {
  __shared__ WarpSums shared;
  RowSums<Owner> sum(shared);
  const auto width = static_cast<float>(n.width);
  for (int64_t t = Owner::first(); t < n.tokens; t += Owner::step()) {
    float x[K][kLaneValues];
    load_row<Owner>(x, n.x, t, n.width);
    float mean, rstd;
    if (n.known) {
      mean = n.stats[2 * t], rstd = n.stats[2 * t + 1];
    } else {
      float total = 0;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k)
        for (int j = 0; j < kLaneValues; ++j) total += x[k][j];
      mean = sum(total) / width;
      float squares = 0;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k) {
        const int count = values_at(column_of<Owner>(k), n.width);
        for (int j = 0; j < kLaneValues; ++j)
          if (j < count) squares += (x[k][j] - mean) * (x[k][j] - mean);
      }
      rstd = 1.0f / sqrtf(sum(squares) / width + n.eps);
      if (Owner::thread() == 0) n.stats[2 * t] = mean, n.stats[2 * t + 1] = rstd;
    }
    const RowsIn scale = table_row(n.scale, n.runs, t), shift = table_row(n.shift, n.runs, t);
    TESSERA_UNROLL
    for (int k = 0; k < K; ++k) {
      const int64_t column = column_of<Owner>(k);
      const int count = values_at(column, n.width);
      float a[kLaneValues], b[kLaneValues];
      load_values(a, scale, column, count);
      load_values(b, shift, column, count);
      for (int j = 0; j < kLaneValues; ++j) x[k][j] = (x[k][j] - mean) * rstd * (n.one + a[j]) + b[j];
      store_values(n.y, x[k], t * n.width + column, count);
    }
  }
}

template <class Owner, int K>
__device__ void store_partials(float* partials, const float (&sums)[K][kLaneValues], int64_t group, int64_t width) {
  TESSERA_UNROLL
  for (int k = 0; k < K; ++k) {
    const int64_t column = column_of<Owner>(k);
    store_lane(partials + group * width + column, sums[k], values_at(column, width));
  }
}

// The row of x and the sums of both tables take 72 registers at the largest width; dy is read a second time, from the cache.
template <class Owner, int K>
__global__ void __launch_bounds__(kThreads, 2) layer_norm_back(ops::LayerNormGradients n) {
  __shared__ WarpSums shared;
  RowSums<Owner> sum(shared);
  const auto width = static_cast<float>(n.width);
  for (int64_t g = Owner::first(); g < n.runs.groups; g += Owner::step()) {
    const Group group = group_of(n.runs, g);
    const RowsIn scale = row_of(n.scale, group.row);
    float dscale[K][kLaneValues] = {}, dshift[K][kLaneValues] = {};
    for (int64_t t = group.begin; t < group.end; ++t) {
      float x[K][kLaneValues];  // normalised
      const float mean = n.stats[2 * t], rstd = n.stats[2 * t + 1];
      float of_up = 0, of_both = 0;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k) {
        const int64_t column = column_of<Owner>(k);
        const int count = values_at(column, n.width);
        float up[kLaneValues], a[kLaneValues];
        load_values(up, n.dy, t * n.width + column, count);
        load_values(x[k], n.x, t * n.width + column, count);
        load_values(a, scale, column, count);
        for (int j = 0; j < kLaneValues; ++j) {
          const float weighted = up[j] * (n.one + a[j]);
          x[k][j] = j < count ? (x[k][j] - mean) * rstd : 0.0f;
          dscale[k][j] += up[j] * x[k][j];
          dshift[k][j] += up[j];
          if (j < count) of_up += weighted, of_both += weighted * x[k][j];
        }
      }
      if (!n.dx.data) continue;
      const float along = sum(of_up) / width, dot = sum(of_both) / width;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k) {
        const int64_t column = column_of<Owner>(k);
        const int count = values_at(column, n.width);
        float up[kLaneValues], a[kLaneValues];
        load_values(up, n.dy, t * n.width + column, count);
        load_values(a, scale, column, count);
        for (int j = 0; j < kLaneValues; ++j) up[j] = (up[j] * (n.one + a[j]) - along - x[k][j] * dot) * rstd;
        if (n.beside.data) {
          load_values(a, n.beside, t * n.width + column, count);
          for (int j = 0; j < kLaneValues; ++j) up[j] += a[j];
        }
        store_values(n.dx, up, t * n.width + column, count);
      }
    }
    if (!n.scale_sums.partials) continue;
    store_partials<Owner>(n.scale_sums.partials, dscale, g, n.width);
    store_partials<Owner>(n.shift_sums.partials, dshift, g, n.width);
  }
}

/// cos and sin of a lane's four pairs.
__device__ void load_angles(float (&cos)[4], float (&sin)[4], const Angles& angles, int64_t token, int64_t column,
                            int count) {
  struct alignas(16) Four {
    float values[4];
  };
  const auto half = static_cast<int>(angles.half), first = static_cast<int>(column / 2) % half;
  const int64_t row = token * angles.half;
  TESSERA_TOUCHES(angles.cos + row + first, count / 2 * sizeof(float), false);
  TESSERA_TOUCHES(angles.sin + row + first, count / 2 * sizeof(float), false);
  if (half % 4 == 0 && count == kLaneValues && reinterpret_cast<uintptr_t>(angles.cos) % 16 == 0 &&
      reinterpret_cast<uintptr_t>(angles.sin) % 16 == 0) {
    const Four c = *reinterpret_cast<const Four*>(angles.cos + row + first),
               s = *reinterpret_cast<const Four*>(angles.sin + row + first);
    for (int i = 0; i < 4; ++i) cos[i] = c.values[i], sin[i] = s.values[i];
  } else {
    for (int i = 0; i < 4; ++i) {
      const bool inside = 2 * i < count;
      cos[i] = inside ? angles.cos[row + (first + i) % half] : 0.0f;
      sin[i] = inside ? angles.sin[row + (first + i) % half] : 0.0f;
    }
  }
}

/// A lane's neighbouring pairs turned.
__device__ void turn_pairs(float (&x)[kLaneValues], const Angles& angles, int64_t token, int64_t column, int count,
                           float sign) {
  float cos[4], sin[4];
  load_angles(cos, sin, angles, token, column, count);
  for (int i = 0; i < 4; ++i) {
    const float re = x[2 * i], im = x[2 * i + 1], s = sign * sin[i];
    x[2 * i] = re * cos[i] - im * s;
    x[2 * i + 1] = re * s + im * cos[i];
  }
}

template <class Owner, int K>
__global__ void __launch_bounds__(kThreads, 4) rms_norm_rows(ops::RmsNormRows n) {
  __shared__ WarpSums shared;
  RowSums<Owner> sum(shared);
  for (int64_t t = Owner::first(); t < n.tokens; t += Owner::step()) {
    float x[K][kLaneValues];
    load_row<Owner>(x, n.x, t, n.width);
    float rstd;
    if (n.known) {
      rstd = n.stats[t];
    } else {
      float squares = 0;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k)
        for (int j = 0; j < kLaneValues; ++j) squares += x[k][j] * x[k][j];
      rstd = 1.0f / sqrtf((n.squares ? n.squares[t] : sum(squares)) / n.whole + n.eps);
      if (Owner::thread() == 0) n.stats[t] = rstd;
    }
    TESSERA_UNROLL
    for (int k = 0; k < K; ++k) {
      const int64_t column = column_of<Owner>(k);
      const int count = values_at(column, n.width);
      float w[kLaneValues];
      load_values(w, n.w, column, count);
      for (int j = 0; j < kLaneValues; ++j) x[k][j] = x[k][j] * rstd * w[j];
      if (n.angles.half) turn_pairs(x[k], n.angles, t, column, count, 1);
      store_values(n.y, x[k], t * n.width + column, count);
    }
  }
}

// The gradient of a row and both sums take 72 registers at the largest width; x is read a second time, from the cache.
template <class Owner, int K>
__global__ void __launch_bounds__(kThreads, 2) rms_norm_back(ops::RmsNormGradients n) {
  __shared__ WarpSums shared;
  RowSums<Owner> sum(shared);
  const int64_t groups = (n.tokens + ops::kGroupTokens - 1) / ops::kGroupTokens;
  for (int64_t group = Owner::first(); group < groups; group += Owner::step()) {
    const int64_t begin = group * ops::kGroupTokens,
                  end = begin + ops::kGroupTokens < n.tokens ? begin + ops::kGroupTokens : n.tokens;
    float dw[K][kLaneValues] = {}, columns[K][kLaneValues] = {};
    for (int64_t t = begin; t < end; ++t) {
      float up[K][kLaneValues];
      load_row<Owner>(up, n.dy, t, n.width);
      const float rstd = n.stats[t];
      float products = 0;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k) {
        const int64_t column = column_of<Owner>(k);
        const int count = values_at(column, n.width);
        float x[kLaneValues], w[kLaneValues];
        load_values(x, n.x, t * n.width + column, count);
        load_values(w, n.w, column, count);
        if (n.angles.half) turn_pairs(up[k], n.angles, t, column, count, -1);
        for (int j = 0; j < kLaneValues; ++j) {
          dw[k][j] += up[k][j] * x[j] * rstd;
          up[k][j] *= w[j];
          products += up[k][j] * x[j];
        }
      }
      if (!n.dx.data) continue;
      const float dot = n.dots ? n.dots[t] : sum(products), back = dot * rstd * rstd * rstd / n.whole;
      TESSERA_UNROLL
      for (int k = 0; k < K; ++k) {
        const int64_t column = column_of<Owner>(k);
        const int count = values_at(column, n.width);
        float x[kLaneValues];
        load_values(x, n.x, t * n.width + column, count);
        for (int j = 0; j < kLaneValues; ++j) {
          x[j] = up[k][j] * rstd - x[j] * back;
          columns[k][j] += x[j];
        }
        store_values(n.dx, x, t * n.width + column, count);
      }
    }
    if (n.sums.partials) store_partials<Owner>(n.sums.partials, dw, group, n.width);
    if (n.columns) store_partials<Owner>(n.columns, columns, group, n.width);
  }
}

/// Of one or two tables of the same rows.
struct BothSums {
  TableSums of[2];
};

/// Adds the sums of groups to tables' rows: a thread has a column, and asks for sixteen groups ahead.
__global__ void add_groups(BothSums both, TableRuns runs, int64_t width) {
  constexpr int kAhead = 16;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < 2 * width;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const TableSums sums = i < width ? both.of[0] : both.of[1];
    const int64_t column = i < width ? i : i - width;
    if (!sums.table) continue;
    for (int64_t r = 0; r < sums.fresh; ++r) sums.table[r * sums.stride + column] = 0;
    for (int r = 0; r < runs.count; ++r) {
      const int end = r + 1 < runs.count ? runs.at[r + 1].groups : runs.groups;
      float total = 0;
      for (int g = runs.at[r].groups; g < end; g += kAhead) {
        float ahead[kAhead];
        for (int j = 0; j < kAhead; ++j) ahead[j] = g + j < end ? sums.partials[(g + j) * width + column] : 0.0f;
        for (int j = 0; j < kAhead; ++j) total += ahead[j];
      }
      float& to = sums.table[runs.at[r].row * sums.stride + column];
      to += total;
    }
  }
}

/// Adds what several backwards have left: a thread has eight columns of one weight, and asks for eight groups ahead.
__global__ void __launch_bounds__(kThreads, 2) add_left(ops::ManyGroupSums all) {
  constexpr int kAhead = 8;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    int64_t lane = i;
    int s = 0;
    for (; s < all.count; ++s) {
      const int64_t lanes = (all.at[s].width + kLaneValues - 1) / kLaneValues;
      if (lane < lanes) break;
      lane -= lanes;
    }
    if (s == all.count) return;
    const RowsIn values = all.at[s].values;
    const int64_t column = lane * kLaneValues, width = all.at[s].width, groups = all.at[s].groups;
    const int count = values_at(column, width);
    float total[kLaneValues] = {}, to[kLaneValues];
    for (int64_t g = 0; g < groups; g += kAhead) {
      float ahead[kAhead][kLaneValues];
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a)
        load_values(ahead[a], values, (g + a) * width + column, g + a < groups ? count : 0);
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a)
        for (int j = 0; j < kLaneValues; ++j)
          if (g + a < groups) total[j] += ahead[a][j];
    }
    load_lane(to, static_cast<const float*>(all.at[s].to) + column, all.at[s].fresh ? 0 : count);
    for (int j = 0; j < kLaneValues; ++j) to[j] += total[j];
    store_lane(all.at[s].to + column, to, count);
  }
}

/// Calls launch(owner, lanes of a thread) with what rows of this width need.
template <class Launch>
cudaError_t by_width(int64_t width, const Launch& launch) {
  constexpr int64_t kLanesOfBlock = kThreads * kLaneValues;
  if (width <= kBlockValues)
    launch(WarpOfRow{}, std::integral_constant<int, 1>{});
  else if (width <= kLanesOfBlock)
    launch(BlockOfRow{}, std::integral_constant<int, 1>{});
  else if (width <= 2 * kLanesOfBlock)
    launch(BlockOfRow{}, std::integral_constant<int, 2>{});
  else if (width <= 3 * kLanesOfBlock)
    launch(BlockOfRow{}, std::integral_constant<int, 3>{});
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}
static_assert(ops::kMostRowWidth == 3 * kThreads * kLaneValues);

}  // namespace

cudaError_t launch_add_groups(std::initializer_list<TableSums> sums, const TableRuns& runs, int64_t width,
                              cudaStream_t stream) {
  BothSums both = {};
  int count = 0;
  for (const TableSums& one : sums)
    if (one.table) both.of[count++] = one;
  if (count == 0 || runs.count == 0) return cudaSuccess;
  TESSERA_LAUNCH(add_groups, blocks_of_rows(count * width, kThreads), kThreads, stream, both, runs, width);
  return cudaGetLastError();
}

cudaError_t launch_add_sums(const ops::ManyGroupSums& sums, cudaStream_t stream) {
  int64_t lanes = 0;
  for (int s = 0; s < sums.count; ++s) lanes += (sums.at[s].width + kLaneValues - 1) / kLaneValues;
  if (lanes == 0) return cudaSuccess;
  TESSERA_LAUNCH(add_left, blocks_of_rows(lanes, kThreads), kThreads, stream, sums);
  return cudaGetLastError();
}

cudaError_t launch_layer_norm(const ops::LayerNormRows& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  return by_width(n.width, [&](auto owner, auto lanes) {
    TESSERA_LAUNCH((layer_norm_rows<decltype(owner), lanes.value>), blocks_of_rows(n.tokens, owner.kRowsAtOnce),
                   kThreads, stream, n);
  });
}

cudaError_t launch_layer_norm_gradients(const ops::LayerNormGradients& n, cudaStream_t stream) {
  if (n.runs.groups == 0) return cudaSuccess;
  const cudaError_t error = by_width(n.width, [&](auto owner, auto lanes) {
    TESSERA_LAUNCH((layer_norm_back<decltype(owner), lanes.value>), blocks_of_rows(n.runs.groups, owner.kRowsAtOnce),
                   kThreads, stream, n);
  });
  return error != cudaSuccess ? error : launch_add_groups({n.scale_sums, n.shift_sums}, n.runs, n.width, stream);
}

cudaError_t launch_rms_norm(const ops::RmsNormRows& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  return by_width(n.width, [&](auto owner, auto lanes) {
    TESSERA_LAUNCH((rms_norm_rows<decltype(owner), lanes.value>), blocks_of_rows(n.tokens, owner.kRowsAtOnce), kThreads,
                   stream, n);
  });
}

cudaError_t launch_rms_norm_gradients(const ops::RmsNormGradients& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  TableRuns all;
  all.add(0, 0, n.tokens);
  const cudaError_t error = by_width(n.width, [&](auto owner, auto lanes) {
    TESSERA_LAUNCH((rms_norm_back<decltype(owner), lanes.value>), blocks_of_rows(all.groups, owner.kRowsAtOnce),
                   kThreads, stream, n);
  });
  return error != cudaSuccess ? error : launch_add_groups({n.sums}, all, n.width, stream);
}

}  // namespace tessera::cuda
