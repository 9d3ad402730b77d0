// Sums with a gate, GELU, their backward, and rotary embedding by itself: twins of ops/fused.h without a sum along rows, so
// that every lane of eight columns goes its own way.
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
      load_values(gate, table_row(n.gate, n.runs, t), column, count);
      for (int j = 0; j < kLaneValues; ++j) y[j] *= gate[j];
    }
    for (int j = 0; j < kLaneValues; ++j) x[j] += y[j];
    store_values(n.out, x, at, count);
    if (n.rounded.data) store_values(n.rounded, x, at, count);
  });
}

constexpr int kAhead = 4;  // tokens of a group that are read before the first of them is written

/// 256 columns of a group of tokens, which a warp has.
struct Part {
  int64_t group, column;
  int count;  ///< of the lane's columns
};
/// Calls body(part) for each of `groups` groups and each part of their columns.
template <class Body>
__device__ void each_part(int64_t groups, int64_t width, const Body& body) {
  const int64_t slices = (width + kBlockValues - 1) / kBlockValues;
  for (int64_t i = WarpOfRow::first(); i < groups * slices; i += WarpOfRow::step()) {
    const int64_t column = i % slices * kBlockValues + WarpOfRow::thread() * kLaneValues;
    body(Part{i / slices, column, values_at(column, width)});
  }
}
int blocks_of_parts(int64_t groups, int64_t width) {
  return blocks_of_rows(groups * ((width + kBlockValues - 1) / kBlockValues), kWarps);
}

__global__ void __launch_bounds__(kThreads, 2) gated_back(ops::GatedGradients n) {
  each_part(n.runs.groups, n.width, [&](const Part& part) {
    const Group group = group_of(n.runs, part.group);
    float gate[kLaneValues] = {}, sums[kLaneValues] = {}, columns[kLaneValues] = {};
    if (n.gate.values) load_values(gate, row_of(n.gate, group.row), part.column, part.count);
    for (int64_t t = group.begin; t < group.end; t += kAhead) {
      float up[kAhead][kLaneValues], y[kAhead][kLaneValues];
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const int here = t + a < group.end ? part.count : 0;
        load_values(up[a], n.up, (t + a) * n.width + part.column, here);
        load_values(y[a], n.y, (t + a) * n.width + part.column, n.sums.partials ? here : 0);
      }
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const bool inside = t + a < group.end;
        for (int j = 0; j < kLaneValues; ++j)
          if (inside) sums[j] += up[a][j] * y[a][j];
        if (!n.dy.data) continue;
        for (int j = 0; j < kLaneValues; ++j) {
          if (n.gate.values) up[a][j] *= gate[j];
          if (inside) columns[j] += up[a][j];
        }
        store_values(n.dy, up[a], (t + a) * n.width + part.column, inside ? part.count : 0);
      }
    }
    const int64_t at = part.group * n.width + part.column;
    if (n.sums.partials) store_lane(n.sums.partials + at, sums, part.count);
    if (n.columns) store_lane(n.columns + at, columns, part.count);
  });
}

constexpr float kTwoRoot = 1.5957691216057308f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
__device__ float gelu_gate(float x) { return 1.0f / (1.0f + exp_fast(-kTwoRoot * (x + kCubic * x * x * x))); }

__global__ void __launch_bounds__(kThreads) gelu_lanes(ops::GeluRows n) {
  for (BlockOfWarp block(n.values); block.inside(); block.next()) {
    float x[kLaneValues];
    load_values(x, n.x, block.at(), block.count());
    for (int j = 0; j < kLaneValues; ++j) x[j] = x[j] * gelu_gate(x[j]);
    store_values(n.y, x, block.at(), block.count());
  }
}

__global__ void __launch_bounds__(kThreads, 2) gelu_back(ops::GeluGradients n) {
  const int64_t groups = (n.tokens + ops::kGroupTokens - 1) / ops::kGroupTokens;
  each_part(groups, n.width, [&](const Part& part) {
    const int64_t begin = part.group * ops::kGroupTokens,
                  end = begin + ops::kGroupTokens < n.tokens ? begin + ops::kGroupTokens : n.tokens;
    float columns[kLaneValues] = {};
    for (int64_t t = begin; t < end; t += kAhead) {
      float dy[kAhead][kLaneValues], x[kAhead][kLaneValues];
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const int here = t + a < end ? part.count : 0;
        load_values(dy[a], n.dy, (t + a) * n.width + part.column, here);
        load_values(x[a], n.x, (t + a) * n.width + part.column, here);
      }
      TESSERA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const bool inside = t + a < end;
        const int64_t at = (t + a) * n.width + part.column;
        for (int j = 0; j < kLaneValues; ++j) {
          const float value = x[a][j], gate = gelu_gate(value), y = value * gate;
          dy[a][j] *= gate + y * (1.0f - gate) * kTwoRoot * (1.0f + 3 * kCubic * value * value);
          x[a][j] = y;
          if (inside) columns[j] += dy[a][j];
        }
        store_values(n.dx, dy[a], at, inside ? part.count : 0);
        if (n.y.data) store_values(n.y, x[a], at, inside ? part.count : 0);
      }
    }
    if (n.columns) store_lane(n.columns + part.group * n.width + part.column, columns, part.count);
  });
}

__global__ void __launch_bounds__(kThreads) glu_lanes(ops::GluRows n) {
  for (BlockOfWarp block(n.values); block.inside(); block.next()) {
    float x[kLaneValues], gate[kLaneValues];
    load_values(x, n.x, block.at(), block.count());
    load_values(gate, n.gate, block.at(), block.count());
    for (int j = 0; j < kLaneValues; ++j) x[j] = x[j] * (gate[j] * sigmoid(gate[j]));
    store_values(n.y, x, block.at(), block.count());
  }
}

__global__ void __launch_bounds__(kThreads) glu_back(ops::GluGradients n) {
  for (BlockOfWarp block(n.values); block.inside(); block.next()) {
    float dy[kLaneValues], x[kLaneValues], gate[kLaneValues];
    load_values(dy, n.dy, block.at(), block.count());
    load_values(x, n.x, block.at(), block.count());
    load_values(gate, n.gate, block.at(), block.count());
    for (int j = 0; j < kLaneValues; ++j) {
      const float up = dy[j], value = x[j];
      dy[j] = up * (gate[j] * sigmoid(gate[j]));
      x[j] = up * value * silu_slope(gate[j]);
    }
    store_values(n.dx, dy, block.at(), block.count());
    store_values(n.dgate, x, block.at(), block.count());
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
  TESSERA_LAUNCH(gated_back, blocks_of_parts(n.runs.groups, n.width), kThreads, stream, n);
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error : launch_add_groups({n.sums}, n.runs, n.width, stream);
}

cudaError_t launch_gelu(const ops::GeluRows& n, cudaStream_t stream) {
  if (n.values == 0) return cudaSuccess;
  TESSERA_LAUNCH(gelu_lanes, thread_blocks(n.values), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_gelu_gradients(const ops::GeluGradients& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  const int64_t groups = (n.tokens + ops::kGroupTokens - 1) / ops::kGroupTokens;
  TESSERA_LAUNCH(gelu_back, blocks_of_parts(groups, n.width), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_silu_glu(const ops::GluRows& n, cudaStream_t stream) {
  if (n.values == 0) return cudaSuccess;
  TESSERA_LAUNCH(glu_lanes, thread_blocks(n.values), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_silu_glu_gradients(const ops::GluGradients& n, cudaStream_t stream) {
  if (n.values == 0) return cudaSuccess;
  TESSERA_LAUNCH(glu_back, thread_blocks(n.values), kThreads, stream, n);
  return cudaGetLastError();
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
