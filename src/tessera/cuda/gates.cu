// Sums with a gate, their backward, and rotary embedding by itself: twins of ops/fused.h without a sum along rows, so that
// every lane of eight columns goes its own way.
#include "tessera/cuda/fused.cuh"

namespace tessera::cuda {

namespace {

/// Calls body(token, column, count) for each lane: a thread block has a row at a time.
template <class Body>
__device__ void each_lane_of_rows(int64_t tokens, int64_t width, const Body& body) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x)
    for (int64_t column = static_cast<int64_t>(threadIdx.x) * kLaneValues; column < width;
         column += kThreads * kLaneValues)
      body(t, column, values_at(column, width));
}

__global__ void __launch_bounds__(kThreads) gated_rows(ops::GatedRows n) {
  each_lane_of_rows(n.tokens, n.width, [&](int64_t t, int64_t column, int count) {
    float x[kLaneValues], y[kLaneValues];
    const int64_t at = t * n.width + column;
    load_values(x, n.x, at, count);
    load_values(y, n.y, at, count);
    if (n.gate.values) {
      float gate[kLaneValues];
      load_lane(gate, table_row(n.gate, n.runs, t) + column, count);
      for (int j = 0; j < kLaneValues; ++j) y[j] *= gate[j];
    }
    for (int j = 0; j < kLaneValues; ++j) x[j] += y[j];
    store_values(n.out, x, at, count);
  });
}

// A warp has 256 columns of a group of tokens; it reads four tokens ahead, before it writes where y may be.
__global__ void __launch_bounds__(kThreads) gated_back(ops::GatedGradients n) {
  constexpr int kAhead = 4;
  const int64_t slices = (n.width + kBlockValues - 1) / kBlockValues;
  for (int64_t i = WarpOfRow::first(); i < n.runs.groups * slices; i += WarpOfRow::step()) {
    const int64_t g = i / slices, column = i % slices * kBlockValues + WarpOfRow::thread() * kLaneValues;
    const int count = values_at(column, n.width);
    const Group group = group_of(n.runs, g);
    float gate[kLaneValues], sums[kLaneValues] = {};
    load_lane(gate, n.gate.values + group.row * n.gate.stride + column, count);
    for (int64_t t = group.begin; t < group.end; t += kAhead) {
      float up[kAhead][kLaneValues], y[kAhead][kLaneValues];
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const int here = t + a < group.end ? count : 0;
        load_values(up[a], n.up, (t + a) * n.width + column, here);
        load_values(y[a], n.y, (t + a) * n.width + column, n.sums.table ? here : 0);
      }
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        for (int j = 0; j < kLaneValues; ++j)
          if (t + a < group.end) sums[j] += up[a][j] * y[a][j];
        if (!n.dy.data) continue;
        for (int j = 0; j < kLaneValues; ++j) up[a][j] *= gate[j];
        store_values(n.dy, up[a], (t + a) * n.width + column, t + a < group.end ? count : 0);
      }
    }
    if (n.sums.table) store_lane(n.sums.partials + g * n.width + column, sums, count);
  }
}

__global__ void __launch_bounds__(kThreads) turn_neighbours(ops::RotatedRows n) {
  const auto half = static_cast<int>(n.angles.half);
  each_lane_of_rows(n.tokens, n.width, [&](int64_t t, int64_t column, int count) {
    float x[kLaneValues];
    load_values(x, n.x, t * n.width + column, count);
    const int first = static_cast<int>(column / 2) % half;
    for (int i = 0; i < kLaneValues / 2; ++i) {
      if (2 * i >= count) continue;
      const int64_t at = t * half + (first + i) % half;
      const float re = x[2 * i], im = x[2 * i + 1], c = n.angles.cos[at], s = n.sign * n.angles.sin[at];
      x[2 * i] = re * c - im * s;
      x[2 * i + 1] = re * s + im * c;
    }
    store_values(n.y, x, t * n.width + column, count);
  });
}

// A thread has eight columns of the first half of a head, and those of the second half that turn with them.
__global__ void __launch_bounds__(kThreads) turn_halves(ops::RotatedRows n) {
  const auto half = static_cast<int>(n.angles.half), lanes = (half + kLaneValues - 1) / kLaneValues;
  const int all = lanes * static_cast<int>(n.width / (2 * half));
  for (int64_t t = blockIdx.x; t < n.tokens; t += gridDim.x)
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
      const int first = i % lanes * kLaneValues, count = values_at(first, half);
      const int64_t at = t * n.width + i / lanes * 2 * half + first, angle = t * half + first;
      float re[kLaneValues], im[kLaneValues], c[kLaneValues], s[kLaneValues];
      load_values(re, n.x, at, count);
      load_values(im, n.x, at + half, count);
      load_lane(c, n.angles.cos + angle, count);
      load_lane(s, n.angles.sin + angle, count);
      for (int j = 0; j < kLaneValues; ++j) {
        const float a = re[j], b = im[j], turned = n.sign * s[j];
        re[j] = a * c[j] - b * turned;
        im[j] = a * turned + b * c[j];
      }
      store_values(n.y, re, at, count);
      store_values(n.y, im, at + half, count);
    }
}

}  // namespace

cudaError_t launch_gated_sum(const ops::GatedRows& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  TESSERA_LAUNCH(gated_rows, blocks_of_rows(n.tokens, 1), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_gated_gradients(const ops::GatedGradients& n, cudaStream_t stream) {
  if (n.runs.groups == 0) return cudaSuccess;
  const int64_t slices = (n.width + kBlockValues - 1) / kBlockValues;
  TESSERA_LAUNCH(gated_back, blocks_of_rows(n.runs.groups * slices, kWarps), kThreads, stream, n);
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error : launch_add_groups(n.sums, n.runs, n.width, stream);
}

cudaError_t launch_rotate_rows(const ops::RotatedRows& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  if (n.half_split)
    TESSERA_LAUNCH(turn_halves, blocks_of_rows(n.tokens, 1), kThreads, stream, n);
  else
    TESSERA_LAUNCH(turn_neighbours, blocks_of_rows(n.tokens, 1), kThreads, stream, n);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
