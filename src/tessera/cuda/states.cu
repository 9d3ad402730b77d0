// Linear attention of heads of 32 channels, forward and backward: twins of ops/fused.h. A warp has a head of a group of tokens, whose
// state is in its registers, or a head of eight tokens, four lanes each.
#include "tessera/cuda/fused.cuh"

namespace tessera::cuda {

namespace {

constexpr int kHead = static_cast<int>(ops::kStateHead), kParts = kHead / kLaneValues;  // lanes of a head's row
constexpr int kStateValues = (kHead + 1) * kHead, kRowsOfWarp = 32 / kParts;

/// ReLU of a head's channels, and its gradient; NaN passes.
__device__ void make_positive(float (&x)[kParts][kLaneValues]) {
  TESSERA_UNROLL
  for (int k = 0; k < kParts; ++k)
    for (int j = 0; j < kLaneValues; ++j) x[k][j] = x[k][j] <= 0 ? 0.0f : x[k][j];
}
__device__ void keep_where_positive(float (&values)[kLaneValues], const float (&x)[kLaneValues]) {
  for (int j = 0; j < kLaneValues; ++j) values[j] = x[j] <= 0 ? 0.0f : values[j];
}

/// Lane l has rows 4 (l / 4) to 4 (l / 4) + 3 of the products, and of each the columns of part l % 4.
__global__ void __launch_bounds__(kThreads, 2) sum_states(ops::StateSums n) {
  const int row = WarpOfRow::thread() / kParts, part = WarpOfRow::thread() % kParts;
  for (int64_t w = WarpOfRow::first(); w < n.runs.groups * n.heads; w += WarpOfRow::step()) {
    const int64_t g = w / n.heads, head = w % n.heads;
    const Group group = group_of(n.runs, g);
    float products[4][kLaneValues] = {}, last[4] = {};
    for (int64_t t = group.begin; t < group.end; ++t) {
      const int64_t at = (t * n.heads + head) * kHead;
      float a[kLaneValues], b[kLaneValues], c[kLaneValues];
      load_values(a, n.a, at + row / 2 * kLaneValues, kLaneValues);
      load_values(b, n.b, at + part * kLaneValues, kLaneValues);
      if (n.c.data) load_values(c, n.c, at + row / 2 * kLaneValues, kLaneValues);
      for (int j = 0; j < kLaneValues; ++j) {
        const float key = n.c.data ? c[j] : a[j];
        c[j] = key <= 0 ? 0.0f : key;
        if (!n.c.data) a[j] = c[j];
      }
      if (n.down) {
        const float down = n.down[t * n.heads + head], slope = n.slope[t * n.heads + head];
        for (int j = 0; j < kLaneValues; ++j) b[j] /= down, c[j] *= slope;
      }
      TESSERA_UNROLL
      for (int k = 0; k < 4; ++k) {
        const float left = row % 2 ? a[4 + k] : a[k];
        last[k] += row % 2 ? c[4 + k] : c[k];
        for (int j = 0; j < kLaneValues; ++j) products[k][j] += left * b[j];
      }
    }
    float* to = n.sums.partials + w * kStateValues;
    TESSERA_UNROLL
    for (int k = 0; k < 4; ++k) store_lane(to + (4 * row + k) * kHead + part * kLaneValues, products[k], kLaneValues);
    if (part != 0) continue;
    TESSERA_TOUCHES(to + kHead * kHead + 4 * row, sizeof(last), true);
    for (int k = 0; k < 4; ++k) to[kHead * kHead + 4 * row + k] = last[k];
  }
}

/// What four lanes have of a token's head.
struct HeadOfToken {
  int64_t token, of_heads, at;  ///< `of_heads`: in [tokens, heads]; `at`: its first channel
  int part, count;              ///< of the lane; no values beyond the last token
  __device__ HeadOfToken(int64_t warp, int64_t heads, int64_t tokens)
      : token(warp / heads * kRowsOfWarp + WarpOfRow::thread() / kParts),
        of_heads(token * heads + warp % heads),
        at(of_heads * kHead),
        part(WarpOfRow::thread() % kParts),
        count(token < tokens ? kLaneValues : 0) {}
  __device__ bool writes() const { return part == 0 && count > 0; }
  __device__ const float* state(const RowTable& states, const TableRuns& runs, int64_t head) const {
    return static_cast<const float*>(table_row(states, runs, count > 0 ? token : 0).data) + head * kStateValues;
  }
  /// All channels.
  __device__ void load(float (&x)[kParts][kLaneValues], const RowsIn& from) const {
    TESSERA_UNROLL
    for (int k = 0; k < kParts; ++k) load_values(x[k], from, at + k * kLaneValues, count);
  }
  __device__ void store(const RowsOut& to, const float (&x)[kLaneValues]) const {
    store_values(to, x, at + part * kLaneValues, count);
  }
  /// The lane's channels.
  __device__ void load_part(float (&x)[kLaneValues], const RowsIn& from) const {
    load_values(x, from, at + part * kLaneValues, count);
  }
};

// Barriers within the products of a state keep the compiler from asking for all of it at once, for which there are no registers.

/// The columns of the lane of x times the products of a state.
__device__ void times_products(float (&out)[kLaneValues], const float (&x)[kParts][kLaneValues], const float* state,
                               const HeadOfToken& here) {
  for (int j = 0; j < kLaneValues; ++j) out[j] = 0;
  TESSERA_UNROLL
  for (int a = 0; a < kHead; ++a) {
    float s[kLaneValues];
    load_lane(s, state + a * kHead + here.part * kLaneValues, here.count);
    for (int j = 0; j < kLaneValues; ++j) out[j] += x[a / kLaneValues][a % kLaneValues] * s[j];
    if (a % 4 == 3) __syncwarp();
  }
}
/// The same of the products transposed.
__device__ void times_transposed(float (&out)[kLaneValues], const float (&x)[kParts][kLaneValues], const float* state,
                                 const HeadOfToken& here) {
  TESSERA_UNROLL
  for (int j = 0; j < kLaneValues; ++j) {
    float sum = 0;
    TESSERA_UNROLL
    for (int k = 0; k < kParts; ++k) {
      float s[kLaneValues];
      load_lane(s, state + (here.part * kLaneValues + j) * kHead + k * kLaneValues, here.count);
      for (int m = 0; m < kLaneValues; ++m) sum += x[k][m] * s[m];
    }
    out[j] = sum;
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kThreads, 2) results_of_states(ops::StateResults n) {
  const int64_t warps = (n.tokens + kRowsOfWarp - 1) / kRowsOfWarp * n.heads;
  for (int64_t w = WarpOfRow::first(); w < warps; w += WarpOfRow::step()) {
    const HeadOfToken here(w, n.heads, n.tokens);
    const float* state = here.state(n.states, n.runs, w % n.heads);
    float x[kParts][kLaneValues], out[kLaneValues], down = 0;
    here.load(x, n.rotated.data ? n.rotated : n.q);
    if (!n.rotated.data) make_positive(x);
    times_products(out, x, state, here);
    if (n.rotated.data) {
      here.load(x, n.q);
      make_positive(x);
    }
    TESSERA_UNROLL
    for (int k = 0; k < kParts; ++k) {
      float s[kLaneValues];
      load_lane(s, state + kHead * kHead + k * kLaneValues, here.count);
      for (int j = 0; j < kLaneValues; ++j) down += x[k][j] * s[j];
    }
    down += n.eps;
    for (int j = 0; j < kLaneValues; ++j) {
      out[j] /= down;
      if (n.out.form == Form::fp16) out[j] = out[j] > 65504.0f ? 65504.0f : out[j] < -65504.0f ? -65504.0f : out[j];
    }
    here.store(n.out, out);
    if (here.writes()) n.down[here.of_heads] = down;
  }
}

__global__ void __launch_bounds__(kThreads, 2) back_of_states(ops::StateGradients n) {
  const int64_t warps = (n.tokens + kRowsOfWarp - 1) / kRowsOfWarp * n.heads;
  for (int64_t w = WarpOfRow::first(); w < warps; w += WarpOfRow::step()) {
    const HeadOfToken here(w, n.heads, n.tokens);
    const float* state = here.state(n.states, n.runs, w % n.heads);
    float x[kParts][kLaneValues], out[kLaneValues], last[kLaneValues];
    here.load(x, n.a);
    if (!n.dc.data) make_positive(x);
    times_products(out, x, state, here);
    here.store(n.db, out);
    here.load(x, n.b);
    times_transposed(out, x, state, here);
    load_lane(last, state + kHead * kHead + here.part * kLaneValues, here.count);
    float key[kLaneValues];
    here.load_part(key, n.dc.data ? n.c : n.a);
    if (n.dc.data) {
      keep_where_positive(last, key);
      here.store(n.dc, last);
    } else {
      for (int j = 0; j < kLaneValues; ++j) out[j] += last[j];
      keep_where_positive(out, key);
    }
    here.store(n.da, out);
  }
}

__global__ void __launch_bounds__(kThreads, 2) back_of_results(ops::StateResultGradients n) {
  const int64_t warps = (n.tokens + kRowsOfWarp - 1) / kRowsOfWarp * n.heads;
  for (int64_t w = WarpOfRow::first(); w < warps; w += WarpOfRow::step()) {
    const HeadOfToken here(w, n.heads, n.tokens);
    const float* state = here.state(n.states, n.runs, w % n.heads);
    const float down = here.count > 0 ? n.down[here.of_heads] : 1.0f;
    float up[kParts][kLaneValues], out[kLaneValues], last[kLaneValues], slope = 0;
    here.load(up, n.dy);
    TESSERA_UNROLL
    for (int k = 0; k < kParts; ++k) {
      load_values(out, n.out, here.at + k * kLaneValues, here.count);
      for (int j = 0; j < kLaneValues; ++j) up[k][j] /= down, slope -= up[k][j] * out[j];
    }
    times_transposed(out, up, state, here);
    load_lane(last, state + kHead * kHead + here.part * kLaneValues, here.count);
    for (int j = 0; j < kLaneValues; ++j) last[j] *= slope;
    if (n.rotated.data)
      here.store(n.rotated, out);
    else
      for (int j = 0; j < kLaneValues; ++j) last[j] += out[j];
    here.load_part(out, n.q);
    keep_where_positive(last, out);
    here.store(n.dq, last);
    if (here.writes()) n.slope[here.of_heads] = slope;
  }
}

int blocks_of_heads(int64_t tokens, int64_t heads) {
  return blocks_of_rows((tokens + kRowsOfWarp - 1) / kRowsOfWarp * heads, kWarps);
}

}  // namespace

cudaError_t launch_add_states(const ops::StateSums& n, cudaStream_t stream) {
  if (n.runs.groups == 0) return cudaSuccess;
  TESSERA_LAUNCH(sum_states, blocks_of_rows(n.runs.groups * n.heads, kWarps), kThreads, stream, n);
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error : launch_add_groups({n.sums}, n.runs, n.heads * kStateValues, stream);
}

cudaError_t launch_state_results(const ops::StateResults& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  TESSERA_LAUNCH(results_of_states, blocks_of_heads(n.tokens, n.heads), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_state_gradients(const ops::StateGradients& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  TESSERA_LAUNCH(back_of_states, blocks_of_heads(n.tokens, n.heads), kThreads, stream, n);
  return cudaGetLastError();
}

cudaError_t launch_state_result_gradients(const ops::StateResultGradients& n, cudaStream_t stream) {
  if (n.tokens == 0) return cudaSuccess;
  TESSERA_LAUNCH(back_of_results, blocks_of_heads(n.tokens, n.heads), kThreads, stream, n);
  return cudaGetLastError();
}

}  // namespace tessera::cuda
