#pragma once
// Launch functions of our kernels, on raw pointers: .cu files never see LibTorch (nvcc takes minutes on its headers).
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "tessera/ops/adamw.h"
#include "tessera/ops/factored.h"
#include "tessera/ops/fused.h"

namespace tessera::cuda {

// Twins of functions of ops: the same bits on every chip, because neither side lets its compiler fuse a product into a sum
// (tests/cuda). Only which of the NaNs a result is depends on the processor. All pointers are the device's.

// ops/half.h and ops/bf16.h.
enum class HalfType { bf16, fp16 };
cudaError_t launch_narrow(uint16_t* out, const float* x, HalfType type, int64_t n, cudaStream_t stream);
cudaError_t launch_widen(float* out, const uint16_t* x, HalfType type, int64_t n, cudaStream_t stream);
cudaError_t launch_narrow_in_place(float* values, HalfType type, int64_t n, cudaStream_t stream);
cudaError_t launch_widen_in_place(float* values, HalfType type, int64_t n, cudaStream_t stream);
cudaError_t launch_high_half(uint16_t* out, const float* x, int64_t n, cudaStream_t stream);
cudaError_t launch_round(float* values, HalfType type, int64_t n, cudaStream_t stream);

/// See device::Backend for these sums.
constexpr int kMaxParts = 64;
cudaError_t launch_sum_in_order(float* out, const float* const* parts, int count, int64_t n, bool accumulate,
                                cudaStream_t stream);
cudaError_t launch_sum_halves(float* out, const void* const* parts, int count, HalfType type, int64_t n,
                              bool accumulate, cudaStream_t stream);
cudaError_t launch_sum_halves_rounded(uint16_t* out, const void* const* parts, int count, HalfType type, int64_t n,
                                      cudaStream_t stream);

/// ops::sum_of_squares: `partials` are sums, one for each 65,536 elements, which are then added in order to `out`.
constexpr int64_t kSquaresOfPartial = 1 << 16;
constexpr int64_t partial_sums(int64_t n) { return (n + kSquaresOfPartial - 1) / kSquaresOfPartial; }
cudaError_t launch_sum_of_squares(double* out, double* partials, const float* x, int64_t n, cudaStream_t stream);
/// out[t] = partials[t] + partials[each + t] + ... of `count` in all, or adds that; `each` divides 256.
cudaError_t launch_add_in_order(double* out, const double* partials, int64_t count, int each, bool adds,
                                cudaStream_t stream);

/// `map`: the 256 values of an ops::DynamicMap, `zero` its code of 0. keep_sign as there.
cudaError_t launch_quantise_blocks(uint8_t* codes, float* scales, const float* x, int64_t n, const float* map, int zero,
                                   bool keep_sign, cudaStream_t stream);
cudaError_t launch_dequantise_blocks(float* out, const uint8_t* codes, const float* scales, int64_t n, const float* map,
                                     cudaStream_t stream);

cudaError_t launch_quantise_int8(int8_t* q, float* scales, const float* x, int64_t n, cudaStream_t stream);
cudaError_t launch_dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n, cudaStream_t stream);

/// See ops::Fp8Tiles; `e5m2` chooses the format.
struct Fp8Matrix {
  int64_t rows, cols, tile_rows, tile_cols;
  bool e5m2;
};
cudaError_t launch_quantise_fp8(uint8_t* codes, float* scales, const float* x, Fp8Matrix matrix, cudaStream_t stream);
cudaError_t launch_dequantise_fp8(float* out, const uint8_t* codes, const float* scales, Fp8Matrix matrix,
                                  cudaStream_t stream);

/// 16 random bits an element, of stochastic rounding and dropout: RandomKey::words() and the first element.
struct DeviceRounding {
  uint32_t words[4];
  uint64_t first;
};
/// ops::MasterRange and ops::MomentRange; a moment of codes needs its map.
struct DeviceMasters {
  float* fp32;
  uint16_t *bf16, *low;
  DeviceRounding rounding;
};
struct DeviceMoment {
  float* fp32;
  uint16_t* bf16;
  uint8_t* codes;
  float* scales;
  const float* map;
  int zero;
  DeviceRounding rounding;
};
cudaError_t launch_adamw(DeviceMasters p, DeviceMoment m, DeviceMoment v, const ops::GradientRange& g, int64_t n,
                         ops::AdamWFactors factors, bool keep_sign, cudaStream_t stream);

/// The others of ops/adamw.h.
cudaError_t launch_lion(DeviceMasters p, DeviceMoment m, const ops::GradientRange& g, int64_t n,
                        const ops::LionFactors& factors, cudaStream_t stream);
cudaError_t launch_schedule_free(DeviceMasters y, float* z, float* v, float* x, const ops::GradientRange& g, int64_t n,
                                 const ops::ScheduleFreeFactors& factors, cudaStream_t stream);
cudaError_t launch_move_average(float* average, DeviceMasters p, int64_t n, float take, cudaStream_t stream);

cudaError_t launch_prodigy(DeviceMasters p, DeviceMoment m, DeviceMoment v, float* s, float* start,
                           const ops::GradientRange& g, int64_t n, const ops::ProdigyFactors& factors, double* totals,
                           cudaStream_t stream);
cudaError_t launch_momentum(DeviceMoment m, const ops::GradientRange& g, int64_t n, const ops::MomentumFactors& factors,
                            const ops::DirectionRange& direction, cudaStream_t stream);
cudaError_t launch_step_along(DeviceMasters p, const ops::DirectionRange& direction, int64_t n, float keep, float step,
                              cudaStream_t stream);

/// ops/factored.h. What the steps have as ops::MasterRange and ops::MomentRange is not read. `partials` as above.
cudaError_t launch_add_row_sums(const ops::ClippedSlice& slice, double* sums, cudaStream_t stream);
cudaError_t launch_add_residual_sums(const ops::ClippedSlice& slice, const ops::CameStep& step, DeviceMoment first,
                                     double* sums, cudaStream_t stream);
cudaError_t launch_add_divided_squares(const ops::ClippedSlice& slice, double* sum, double* partials,
                                       cudaStream_t stream);
cudaError_t launch_add_master_squares(DeviceMasters p, int64_t n, double* sum, double* partials, cudaStream_t stream);
cudaError_t launch_take_means(const ops::FactoredMeans& means, cudaStream_t stream);
cudaError_t launch_adafactor(const ops::ClippedSlice& slice, const ops::AdafactorStep& step, DeviceMasters p,
                             DeviceMoment first, cudaStream_t stream);
cudaError_t launch_came(const ops::ClippedSlice& slice, const ops::CameStep& step, DeviceMasters p, DeviceMoment first,
                        cudaStream_t stream);

/// ops::DropRange.
struct DropRows {
  int64_t rows, cols, stride, width;
  DeviceRounding key;
  uint32_t border;
  float scale;
};
cudaError_t launch_drop_floats(float* x, const DropRows& rows, cudaStream_t stream);
cudaError_t launch_drop_halves(uint16_t* x, HalfType type, const DropRows& rows, cudaStream_t stream);

/// ops/fused.h.
cudaError_t launch_layer_norm(const ops::LayerNormRows& rows, cudaStream_t stream);
cudaError_t launch_layer_norm_gradients(const ops::LayerNormGradients& rows, cudaStream_t stream);
cudaError_t launch_rms_norm(const ops::RmsNormRows& rows, cudaStream_t stream);
cudaError_t launch_rms_norm_gradients(const ops::RmsNormGradients& rows, cudaStream_t stream);
cudaError_t launch_gated_sum(const ops::GatedRows& rows, cudaStream_t stream);
cudaError_t launch_gated_gradients(const ops::GatedGradients& rows, cudaStream_t stream);
cudaError_t launch_gelu(const ops::GeluRows& rows, cudaStream_t stream);
cudaError_t launch_gelu_gradients(const ops::GeluGradients& rows, cudaStream_t stream);
cudaError_t launch_quantise_lines(const ops::QuantisedLines& lines, cudaStream_t stream);
cudaError_t launch_flat_scales(const ops::FlatLines& lines, cudaStream_t stream);
cudaError_t launch_flat_codes(const ops::FlatLines& lines, cudaStream_t stream);
cudaError_t launch_merge_scales(const ops::MergedScales& scales, cudaStream_t stream);
cudaError_t launch_turn_codes(const ops::TurnedCodes& codes, cudaStream_t stream);
cudaError_t launch_silu_glu(const ops::GluRows& rows, cudaStream_t stream);
cudaError_t launch_silu_glu_gradients(const ops::GluGradients& rows, cudaStream_t stream);
cudaError_t launch_rotate_rows(const ops::RotatedRows& rows, cudaStream_t stream);
cudaError_t launch_depthwise(const ops::DepthwiseRows& rows, cudaStream_t stream);
cudaError_t launch_depthwise_gradients(const ops::DepthwiseGradients& rows, cudaStream_t stream);
cudaError_t launch_invert_taps(const ops::InvertedTaps& taps, cudaStream_t stream);
cudaError_t launch_add_states(const ops::StateSums& rows, cudaStream_t stream);
cudaError_t launch_state_results(const ops::StateResults& rows, cudaStream_t stream);
cudaError_t launch_state_gradients(const ops::StateGradients& rows, cudaStream_t stream);
cudaError_t launch_state_result_gradients(const ops::StateResultGradients& rows, cudaStream_t stream);
/// The second half of a sum over tokens: of one table, or of two with the same rows.
cudaError_t launch_add_groups(std::initializer_list<ops::TableSums> sums, const ops::TableRuns& runs, int64_t width,
                              cudaStream_t stream);
cudaError_t launch_add_sums(const ops::ManyGroupSums& sums, cudaStream_t stream);

/// ops::ProductCall without LibTorch, and where cuBLASLt works: products.cpp.
struct LibraryProduct {
  ops::Form of, to;
  int64_t m, n, k;
  bool a_turned, b_turned;
  int64_t a_stride, b_stride, out_stride;
  const void *a, *b, *bias;  ///< bias null: none
  void* out;
  bool add;
};
struct LibraryMemory {
  void *handle, *data;
  size_t bytes;
};
using ProductWords = std::array<uint64_t, 8>;
/// "cuBLASLt 13.1.0"; empty where LibTorch has opened none.
std::string product_library();
/// Writes at most `most` algorithms to `words`, first the heuristic's own; how many.
int product_candidates(const LibraryProduct& product, int most, LibraryMemory memory, ProductWords* words);
/// Descriptions of products that a thread keeps, of the shapes and algorithms of its multiply().
inline constexpr size_t kMostKnownProducts = 256;
/// Empty, or why the library refuses.
std::string multiply(const LibraryProduct& product, const ProductWords& words, LibraryMemory memory,
                     cudaStream_t stream);

/// Keeps the stream busy for so many cycles.
cudaError_t launch_spin(int64_t cycles, cudaStream_t stream);
/// `value` to a word that the host reads.
cudaError_t launch_write_word(uint32_t* to, uint32_t value, cudaStream_t stream);

}  // namespace tessera::cuda
