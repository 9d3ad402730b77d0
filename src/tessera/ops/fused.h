#pragma once
// Operators over rows that a GPU has as kernels of our own (cuda/norms.cu, gates.cu, taps.cu ...), and their twins on CPUs, with the
// same bits: what a kernel of LibTorch does in ten passes over memory, these do in one.
//
//   layer_norm({.tokens = 90, .width = 71, .x = {x, Form::fp32}, .y = {y, Form::bf16}, .stats = stats, ...});
//
// [Note: order of sums in rows] A row is cut into lanes of eight neighbouring columns, which 256 threads take in turn; each
// adds its values in their order. The sums of 32 threads are added in pairs (16 apart, then 8, 4, 2, 1), and the eight sums of
// these in order. A sum over tokens is made of groups of 64, each in order; groups never hold tokens of two rows of a table,
// and their sums are added in order to what the table has. So no bit depends on the chip or on the launch. fp32 throughout, no
// product is fused into a sum, and a result is rounded once.
#include <cstdint>

namespace tessera::ops {

enum class Form : int32_t { fp32, bf16, fp16 };

/// A matrix [tokens, width], its rows one after the other.
struct RowsIn {
  const void* data = nullptr;
  Form form = Form::fp32;
};
struct RowsOut {
  void* data = nullptr;
  Form form = Form::fp32;
};

/// Vectors of `width` values for tokens, `stride` values apart.
struct RowTable {
  const void* values = nullptr;
  int64_t stride = 0;
  Form form = Form::fp32;
  RowsIn row(int64_t index) const {
    return {static_cast<const char*>(values) + index * stride * (form == Form::fp32 ? 4 : 2), form};
  }
};

inline constexpr int kGroupTokens = 64;  ///< of a partial sum over tokens
inline constexpr int kMostTableRuns = 64;
inline constexpr int64_t kMostRowWidth = 6144;  ///< of rows with a statistic: what a thread block holds in registers

/// Which row of a table tokens use: neighbours share one. A kernel gets it as an argument.
struct TableRuns {
  struct Run {
    int32_t row, begin, end;  ///< tokens [begin, end)
    int32_t groups;           ///< of the runs before this one
  };
  Run at[kMostTableRuns] = {};
  int32_t count = 0, groups = 0;

  void add(int64_t row, int64_t begin, int64_t end) {
    at[count++] = {static_cast<int32_t>(row), static_cast<int32_t>(begin), static_cast<int32_t>(end), groups};
    groups += static_cast<int32_t>((end - begin + kGroupTokens - 1) / kGroupTokens);
  }
};

/// y = (x - mean) * rstd * (one + scale) + shift.
struct LayerNormRows {
  int64_t tokens, width;
  RowsIn x;
  RowsOut y;
  float* stats;  ///< mean and rstd of each token
  bool known;    ///< they are read
  RowTable scale, shift;
  TableRuns runs;
  float one, eps;
};
void layer_norm(const LayerNormRows& rows);

/// Where the sums of a gradient of a table go: added to `table`, by way of a partial sum [groups, width] for each group. A null
/// table: the sums of groups are left for add_sums().
struct TableSums {
  float* table = nullptr;
  int64_t stride = 0;
  float* partials = nullptr;
  int64_t fresh = 0;  ///< so many rows of the table have no values yet, and begin at zero
};

/// Sums of groups that go to the gradient of a weight: the rows of `values` [groups, width] are added in order, and then to what
/// `to` has, or (fresh) to zero.
struct GroupSums {
  RowsIn values;
  int64_t groups = 0, width = 0;
  float* to = nullptr;
  bool fresh = false;
};
inline constexpr int kMostGroupSums = 24;
/// Of several weights, none twice: what the kernels of a backward have left is added by one launch.
struct ManyGroupSums {
  GroupSums at[kMostGroupSums] = {};
  int32_t count = 0;
};
void add_sums(const ManyGroupSums& sums);

// [Note: sums of columns] The gradient of a bias is the sum of the rows of a gradient that another kernel has written. That
// one leaves the sums of each group of its rows, `columns` [groups, width], so that nothing of it is read again. They are of
// values before these are rounded.

struct LayerNormGradients {
  int64_t tokens, width;
  RowsIn dy, x;
  const float* stats;
  RowTable scale;
  float one;
  TableRuns runs;
  RowsIn beside;                     ///< null or the gradient that x has by another way, which dx then includes
  RowsOut dx;                        ///< null: not wanted
  TableSums scale_sums, shift_sums;  ///< both or none
};
void layer_norm_gradients(const LayerNormGradients& rows);

/// A value is beyond an 8-bit format where it is more than this times the largest that its scale reaches: rounding a scale is less.
inline constexpr float kBeyondFp8 = 1.0001f;

/// 8-bit codes of the rows of x, or of its columns (`turned`): lines of `length()` codes and zeros up to `stride`, each with a scale
/// as quantise_fp8() of eight_bit.h has it for one row.
struct QuantisedLines {
  int64_t rows, width;
  RowsIn x;
  bool turned, e5m2;
  uint8_t* codes;
  float* scales;
  int64_t stride;
  /// Adds the number of values, of those other than zero whose code is zero, and of those beyond the format; null: it does not.
  double* counts = nullptr;
  int64_t lines() const { return turned ? width : rows; }
  int64_t length() const { return turned ? rows : width; }
};
void quantise_lines(const QuantisedLines& lines);

/// A run of elements of a matrix of rows of `width` as a shard has it: from `first`, which may be within a row, with a scale for
/// each row, or column, that it has values of: all columns. fp32 values count as rounded to bf16 (high_half() of bf16.h).
struct FlatLines {
  int64_t first, count, width;
  RowsIn x;
  bool columns;
  float* scales;
  uint8_t* codes = nullptr;  ///< [count]
  /// Of rows: the first and the number of them.
  int64_t first_row() const { return first / width; }
  int64_t rows() const { return count > 0 ? (first + count - 1) / width - first_row() + 1 : 0; }
  int64_t lines() const { return columns ? width : rows(); }
};
/// The scales in e4m3 of the values that are here, as quantise_lines() has them of whole lines; at least 1e-12.
void flat_scales(const FlatLines& lines);
/// The codes of these values by the scales.
void flat_codes(const FlatLines& lines);

/// Each scale `to` becomes the larger of it and `from`, or zero where `from` is null. Places may overlap.
struct MergedScales {
  static constexpr int kMost = 32;
  struct Run {
    const float* from;
    float* to;
    int64_t count;
  };
  Run at[kMost] = {};
  int32_t count = 0;
};
void merge_scales(const MergedScales& scales);

/// Codes [rows, width] as [width, stride], with zeros from `rows` on.
struct TurnedCodes {
  int64_t rows, width;
  const uint8_t* from;
  uint8_t* to;
  int64_t stride;
};
void turn_codes(const TurnedCodes& codes);

/// Rotary embedding of neighbouring pairs: cos and sin [tokens, half]; half 0: none.
struct Angles {
  const float *cos = nullptr, *sin = nullptr;
  int64_t half = 0;
};

/// y = x * rstd * w, rotated. `squares`: null or the sums of whole rows, whose width is `whole`.
struct RmsNormRows {
  int64_t tokens, width;
  RowsIn x;
  RowsOut y;
  float* stats;
  bool known;
  RowsIn w;
  Angles angles;
  const float* squares;
  float whole, eps;
};
void rms_norm(const RmsNormRows& rows);

struct RmsNormGradients {
  int64_t tokens, width;
  RowsIn dy, x;
  const float* stats;
  RowsIn w;
  Angles angles;
  const float* dots;  ///< null or the sums of dy * w * x over whole rows
  float whole;
  RowsOut dx;                ///< null: not wanted
  TableSums sums;            ///< of w, or none
  float* columns = nullptr;  ///< null or of dx
};
void rms_norm_gradients(const RmsNormGradients& rows);

/// out = x + y * gate; without a gate x + y.
struct GatedRows {
  int64_t tokens, width;
  RowsIn x, y;
  RowTable gate;
  TableRuns runs;
  RowsOut out;
  RowsOut rounded = {};  ///< null or out once more
};
void gated_sum(const GatedRows& rows);

/// dy = up * gate, or up without a gate, and the sums of up * y; dy may be y.
struct GatedGradients {
  int64_t tokens, width;
  RowsIn up, y;
  RowTable gate;
  TableRuns runs;
  RowsOut dy;                ///< null: not wanted
  TableSums sums;            ///< or none
  float* columns = nullptr;  ///< null or of dy
};
void gated_gradients(const GatedGradients& rows);

/// y = GELU(x) in its tanh approximation, x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)); y may be x.
struct GeluRows {
  int64_t values;
  RowsIn x;
  RowsOut y;
};
void gelu(const GeluRows& rows);

/// dx = dy * GELU'(x), which may be x or dy, and GELU(x), which may be dy.
struct GeluGradients {
  int64_t tokens, width;
  RowsIn dy, x;
  RowsOut dx, y;             ///< y null: not wanted
  float* columns = nullptr;  ///< null or of dx
};
void gelu_gradients(const GeluGradients& rows);

/// y = x * silu(gate), silu(g) = g * sigmoid(g).
struct GluRows {
  int64_t values;
  RowsIn x, gate;
  RowsOut y;
};
void silu_glu(const GluRows& rows);

struct GluGradients {
  int64_t values;
  RowsIn dy, x, gate;
  RowsOut dx, dgate;
};
void silu_glu_gradients(const GluGradients& rows);

/// y = x with pairs turned by the angles (sign 1) or back (-1): neighbours, or (half_split) of the two halves of a head.
struct RotatedRows {
  int64_t tokens, width;
  RowsIn x;
  RowsOut y;
  Angles angles;
  bool half_split;
  float sign;
};
void rotate_rows(const RotatedRows& rows);

/// Which row of x each tap of a row reads: [taps, rows], entries -1 for none. Rows of one tap read different rows.
struct TapTable {
  const int32_t* source = nullptr;
  int32_t taps = 0;
  int64_t rows = 0, sources = 0;  ///< x has `sources` rows
};
/// Of kernels: their weights are in registers.
constexpr bool has_taps(int64_t taps) { return taps == 3 || taps == 9; }

/// y[row] = bias + the sum of x[source] * w over the taps, in their order; with `silu` of silu(x). w [width, taps]. `through`: null
/// or what the result goes back through: it is multiplied by the slopes of silu there. `value`: null or what that result is the
/// gate of: y = value * silu(result). With `up`, the gradient of this, y is the gradient of the result, and d_value that of value.
struct DepthwiseRows {
  int64_t width;
  TapTable table;
  RowsIn x, w, bias;  ///< bias may be null
  RowsOut y;
  bool silu = false;
  RowsIn through = {};
  float* columns = nullptr;  ///< null or of y
  RowsIn value = {}, up = {};
  RowsOut d_value = {};
};
void depthwise(const DepthwiseRows& rows);

/// Adds the sums of dy[row] * x[source] to dw [width, taps], and those of dy to db [width], by way of a partial sum
/// [groups, taps + 1, width] for each 64 rows. The gradient of x is depthwise() by the inverse table.
struct DepthwiseGradients {
  int64_t width;
  TapTable table;
  RowsIn dy, x;
  float *dw, *db;  ///< null: not wanted
  float* partials;
  bool silu = false;  ///< of silu(x)
  int64_t groups() const { return (table.rows + kGroupTokens - 1) / kGroupTokens; }
};
void depthwise_gradients(const DepthwiseGradients& rows);

/// inverse[tap, source] = row, -1 where no row reads it.
struct InvertedTaps {
  TapTable table;
  int32_t* inverse;
};
void invert_taps(const InvertedTaps& taps);

// Linear attention (rows.h) of heads of kStateHead channels. A state [kStateHead + 1, kStateHead] of a sample's head is fp32; the
// runs say which sample a token is of. Sums over channels are in their order. Keys and queries are taken as max(0, x), and the
// gradients of x are 0 where it is not above 0; their turned forms, where there are such, are taken as they are.
inline constexpr int64_t kStateHead = 32;

/// Adds a[t]^T b[t], and max(0, c[t]) as the last row, to the states of samples. c null: a stands for both, as max(0, a[t]). In a
/// backward b is divided by `down`, and the last row is multiplied by `slope`, of each token and head [tokens, heads].
struct StateSums {
  int64_t tokens, heads;
  RowsIn a, b, c;
  const float *down, *slope;  ///< both or none
  TableRuns runs;
  TableSums sums;  ///< of tables of heads * (kStateHead + 1) * kStateHead values
};
void add_states(const StateSums& rows);

/// out = (rotated . products) / (max(0, q) . sums + eps), with the divisor of each token and head. rotated null: max(0, q).
struct StateResults {
  int64_t tokens, heads;
  RowsIn rotated, q;
  RowTable states;
  TableRuns runs;
  float eps;
  RowsOut out;  ///< fp16: within its largest value
  float* down;
};
void state_results(const StateResults& rows);

/// The gradients of a, b and c of a state whose gradient is given; that of c is part of a's where a stands for both (c null).
struct StateGradients {
  int64_t tokens, heads;
  RowsIn a, b, c;
  RowTable states;
  TableRuns runs;
  RowsOut da, db, dc;
};
void state_gradients(const StateGradients& rows);

/// The gradients of rotated and q, in dq alone where q stands for both (rotated null); slope = -(dy / down) . out.
struct StateResultGradients {
  int64_t tokens, heads;
  RowsIn dy, out, q;
  const float* down;
  RowTable states;
  TableRuns runs;
  RowsOut rotated, dq;
  float* slope;
};
void state_result_gradients(const StateResultGradients& rows);

}  // namespace tessera::ops
