#pragma once
// The raw functions behind the operators, one table a kind of device. An operator's node (ops.h) decides what is saved,
// deferred, recomputed and written in place, and calls the table of its operand's device for the arithmetic.
//
//   const Tensor y = kernels(x).linear(x, w, bias, /*gelu=*/false, at::kFloat);
//
// | table | runs on | what it is |
// | cpu_kernels() | CPU | our own vectorised kernels (ops/cpu), the default there |
// | aten_kernels() | CPU, CUDA | LibTorch's own operators (ops/aten), where asked for |
// | fused_kernels() | CUDA, CPU | LibTorch's, but for rows that a GPU has kernels of our own for (fused.h): the default of a
//                                 GPU, and on a CPU their twins, with the same bits |
//
// [Note: kernels on meta tensors] On meta tensors a function only allocates: ours exactly what they allocate on a CPU,
// which is how the planner measures ([Note: bytes by running on meta] in engine/measure.h), those in LibTorch's operators
// what these allocate on a GPU ([Note: memory of a target] in session.h).
//
// Shapes as in ops.h. Outputs that the caller passes are contiguous in their last dim. "Adds to" means +=; with `add` false what
// it adds to has no values yet. `columns`: null, or where a backward may leave the sums of its gradient's columns, fp32
// [groups of its rows, D], for the gradient of a bias ([Note: sums of columns] in fused.h); undefined: it leaves none.
#include <array>

#include "tessera/ops/ops.h"
#include "tessera/ops/session.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

/// y = (x - mean) * rstd * (one + scale[row]) + shift[row]: modulated with one = 1, affine with one = 0 and no rows.
struct NormTables {
  Tensor scale = {}, shift = {};   ///< [R, D], or [D] without rows; fp32
  const RowIndex* rows = nullptr;  ///< null: one row for all tokens
  float one = 0;
};

/// Tables of the rotary embedding of neighbouring pairs, [T, d_h / 2] fp32; undefined: none.
struct RotaryTables {
  Tensor cos, sin;
};

/// What the backward of a norm makes besides the gradient of x: adds to these fp32 sums, [R, D] or [D]; undefined: not wanted.
struct NormSums {
  Tensor scale = {}, shift = {};
  bool add_scale = true, add_shift = true;  ///< false: they have no values yet
};

using Offsets = std::vector<int64_t>;

/// Operands of a frozen linear.
struct FrozenLinearParts {
  Tensor x;  ///< [T, in]; undefined in a backward without adapter and GELU
  const WeightSite& weight;
  const WeightSite* bias;
  const Adapter* pair;
  bool gelu;
  Tensor norms;      ///< |W'| [out] fp32, with a magnitude
  bool fp8 = false;  ///< the product of x and the weight is in 8 bits; not with a magnitude
};

// [Note: products in 8 bits] Where a session asks for it (session.h), the linear of a bf16 stream multiplies 8-bit floats:
//
//   y  = x W^T     x and W in e4m3, a scale for each row of either, along `in`
//   dx = dy W      dy in e5m2, a scale for each row; W in e4m3, a scale for each column, along `out`
//   dW = dy^T x    dy in e5m2 and x in e4m3, a scale for each column of either, along the tokens
//
// A scale is the largest magnitude of what a sum goes along, over the format's (eight_bit.h): nothing is clipped, and every
// sum has one scale of each side, which multiplies it when it is done. Sums are fp32, of exact products of codes. The length
// of sums is padded with zeros to a multiple of 16, as tensor cores want it. Bias, adapters and gradients of biases are those
// of bf16. Each rank quantises what it multiplies: the columns of tp have scales of their own, and so have the tokens of each
// rank of cp and sp and of each micro-batch in dW. That takes no message, and a scale of fewer values is no less exact;
// layouts agree to within the rounding of 8 bits. Linears that read one input one after the other (q, k and v) share its codes:
// of its rows in the forward, of its columns in the backward (Fp8Inputs of session.h).
//
// [Note: sums of 8-bit products on GPUs] cuBLAS and CUTLASS are called without "fast accumulation": Hopper's tensor cores keep
// 14 bits of a partial sum, which then is added to one of fp32 every 128 products or more often. That is an error of 2^-13 of
// the largest summand of a stretch, under a 256th of the codes' own rounding (2^-4 of a value in e4m3, 2^-3 in e5m2), which
// is why the products are not split further.

constexpr int64_t kFp8Pad = 16;  ///< lengths of sums are multiples of it

/// Whether a linear of x whose result is of `type` multiplies in 8 bits.
bool takes_fp8(const Tensor& x, at::ScalarType type);
/// A weight [out, in] of such a product: 16-bit values, which are quantised at each use, or what a gather has brought of it.
class Fp8Weight {
 public:
  Fp8Weight(Tensor matrix) : matrix_(std::move(matrix)) {}  // NOLINT(google-explicit-constructor): a matrix is one
  /// `matrix`: makes the values where there are no codes.
  template <class Make>
  Fp8Weight(const WeightSite& site, const Make& matrix) : codes_(site.codes) {
    if (!site.in_codes()) matrix_ = matrix();
  }
  Fp8Lines rows() const;
  Fp8Lines columns() const;

 private:
  Tensor matrix_;
  std::array<Fp8Lines, 2> codes_ = {};
};
/// x W^T + bias; dy W; dw = dy^T x, or adds to it. Shapes as of the table's functions. `shared`: the columns of x, of which
/// this is a reader; null: it makes its own.
Tensor fp8_linear(const Tensor& x, const Fp8Weight& w, const Tensor& bias, bool gelu, at::ScalarType type);
Tensor fp8_input_gradient(const Tensor& dy, const Fp8Weight& w, at::ScalarType type);
void fp8_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add,
                         Fp8Columns* shared = nullptr);
/// Where the table's fp8_lines() counts what it loses; null: nowhere.
double* fp8_counts(at::ScalarType format);
/// Which gradient of x a backward makes; in_place: it overwrites x.
enum class InputGradient { none, fresh, in_place };

/// What is made of the difference d of a prediction and its target: a weighted sum of these. c: where they go over from
/// squares to absolute values.
enum class ErrorKind {
  mse,             ///< d^2
  mae,             ///< |d|
  huber,           ///< 2 c (sqrt(d^2 + c^2) - c), as in sd-scripts and SimpleTuner
  smooth_l1,       ///< 2 (sqrt(d^2 + c^2) - c), likewise
  pseudo_huber,    ///< sqrt(d^2 + c^2) - c, as in ai-toolkit
  true_huber,      ///< d^2 / 2 below c, else c (|d| - c / 2), as torch has it
  true_smooth_l1,  ///< true_huber / c, likewise
  log_cosh,        ///< log(cosh d)
};
inline constexpr size_t kErrorKinds = static_cast<size_t>(ErrorKind::log_cosh) + 1;
inline constexpr const char* kErrorNames[kErrorKinds] = {"mse",          "mae",        "huber",          "smooth_l1",
                                                         "pseudo_huber", "true_huber", "true_smooth_l1", "log_cosh"};
struct ErrorForm {
  std::array<double, kErrorKinds> weights = {1};
  double c = 1;
  double& operator[](ErrorKind kind) { return weights[static_cast<size_t>(kind)]; }
  bool is_mse() const { return *this == ErrorForm{.c = c}; }
  bool operator==(const ErrorForm&) const = default;
};
struct ErrorValue {
  double error = 0, slope = 0;  ///< and its derivative by d
};
ErrorValue error_of(const ErrorForm& form, double d);

/// The error of a sample, left where its prediction is until the host reads it: number * unit.
struct SampleError {
  Tensor number = {};  ///< [1] fp64; undefined: the error is 0
  double unit = 0;
  /// The host waits for it.
  double value() const { return number.defined() ? number.item<double>() * unit : 0; }
};

struct Kernels {
  const char* name;

  // Products. `gelu`: of gelu_tanh(x) in place of x.
  /// x W^T + bias in `type`; w [out, in], bias [out] or undefined.
  Tensor (*linear)(const Tensor& x, const Tensor& w, const Tensor& bias, bool gelu, at::ScalarType type);
  /// dy W, times gelu'(x) if `gelu`, in the dtype of x. `in_place`: the result overwrites x.
  Tensor (*linear_input_gradient)(const Tensor& dy, const Tensor& w, const Tensor& x, bool gelu, bool in_place);
  /// Adds dy W to `dx`, what x has by another way, in its dtype.
  void (*add_linear_input_gradient)(const Tensor& dx, const Tensor& dy, const Tensor& w);
  /// dw = dy^T x, or adds to it. dw fp32.
  void (*linear_weight_gradient)(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add);
  /// Both gradients of gelu_tanh(x) W^T: that of x, and dw as above.
  Tensor (*gelu_linear_gradients)(const Tensor& dy, const Tensor& w, const Tensor& x, bool in_place, const Tensor& dw,
                                  bool add, Tensor* columns);
  /// db = the sum of the rows of dy, or adds to it, in a fixed order. db [out] fp32.
  void (*bias_gradient)(const Tensor& db, const Tensor& dy, bool add);

  // Products in 8 bits.
  /// The rows of x, or with `turned` its columns, in `format`, e4m3 or e5m2. x fp32 or 16-bit, contiguous.
  Fp8Lines (*fp8_lines)(const Tensor& x, at::ScalarType format, bool turned, bool gelu);
  /// a b^T + bias in `type`, of a line of a for each row and one of b for each column; bias or undefined.
  Tensor (*fp8_product)(const Fp8Lines& a, const Fp8Lines& b, const Tensor& bias, at::ScalarType type);
  /// out = a b^T, or adds to it. out fp32.
  void (*fp8_product_into)(const Tensor& out, const Fp8Lines& a, const Fp8Lines& b, bool add);
  /// A frozen weight [out, in] in `type`, itself if it has that form.
  Tensor (*frozen_matrix)(const WeightSite& weight, at::ScalarType type);

  // Products with frozen weights, with or without an adapter (frozen.h).
  Tensor (*frozen_linear)(const FrozenLinearParts& parts, at::ScalarType type);
  /// Adds to the gradients of the adapter's sites; returns that of x, in the dtype `type` of x. `y`: the result, if
  /// there is a magnitude.
  Tensor (*frozen_linear_backward)(const FrozenLinearParts& parts, const Tensor& dy, const Tensor& y,
                                   InputGradient wanted, at::ScalarType type);
  /// The squared lengths of the rows of W + s B A [out], for DoRA; of the columns that are here.
  Tensor (*adapted_squares)(const WeightSite& weight, const Adapter& adapter);

  // Norms. Weights and tables of any form. Statistics are fp32: (mean, rstd) [T, 2] of a LayerNorm, rstd [T] of an RMSNorm; read if defined, else
  // computed and returned.
  Tensor (*layer_norm)(const Tensor& x, const NormTables& tables, double eps, at::ScalarType type, Tensor& stats);
  /// The gradient of x, or undefined where it is not wanted. `beside`: what x has by another way, to be included; or
  /// undefined.
  Tensor (*layer_norm_backward)(const Tensor& dy, const Tensor& x, const NormTables& tables, const Tensor& stats,
                                const NormSums& sums, bool wanted, const Tensor& beside);
  /// The sum of squares of each row [T] fp32, of a width that is sharded over ranks.
  Tensor (*row_squares)(const Tensor& x);
  /// `squares`: of whole rows of a sharded width, else undefined; `width`: that of all ranks.
  Tensor (*rms_norm)(const Tensor& x, const Tensor& w, const RotaryTables& rotary, double eps, int64_t width,
                     const Tensor& squares, Tensor& stats);
  /// The sum of dy * w * x of each row [T] fp32, dy rotated back. May use dx as scratch.
  Tensor (*rms_norm_dots)(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                          const Tensor& dx);
  /// Writes dx and adds to dw [D] fp32; undefined: not wanted. `dots`: of whole rows of a sharded width, else undefined.
  void (*rms_norm_backward)(const Tensor& dy, const Tensor& x, const Tensor& w, const RotaryTables& rotary,
                            const Tensor& stats, int64_t width, const Tensor& dots, const Tensor& dx, const Tensor& dw,
                            bool add, Tensor* columns);

  // Sums and activations.
  Tensor (*sum)(const Tensor& x, const Tensor& y);
  /// The gradient of y in its dtype.
  Tensor (*sum_backward)(const Tensor& up, at::ScalarType type, Tensor* columns);
  /// The sum over n of 16-bit parts [n, rows, cols] and `bias` [cols], or undefined, in fp32 and rounded once.
  Tensor (*sum_of_halves)(const Tensor& parts, const Tensor& bias);
  /// `rounded`: null, or where a table that makes it in the same pass puts the sum in bf16.
  Tensor (*gated_residual)(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows, Tensor* rounded);
  /// Adds up * y to the rows of dgate [R, D] fp32, and dy = up * gate[row]; undefined: not wanted. dy may share memory with y.
  void (*gated_residual_backward)(const Tensor& up, const Tensor& y, const Tensor& gate, const RowIndex& rows,
                                  const Tensor& dy, const Tensor& dgate, bool add, Tensor* columns);
  Tensor (*gelu_tanh)(const Tensor& x);
  Tensor (*gelu_tanh_gradient)(const Tensor& dy, const Tensor& x);

  // Losses, fp32.
  /// Adds `part` of the mean error of some rows to their sample's, and writes the gradient of `scale` times that mean.
  /// `weights`: of each value's error, not below 0, and scratch behind; undefined: 1 each.
  void (*add_error)(SampleError& error, const Tensor& prediction, const Tensor& target, const Tensor& weights,
                    const ErrorForm& form, double part, double scale, const Tensor& gradient);
  /// The sum of a * b, [1] fp64.
  Tensor (*dot)(const Tensor& a, const Tensor& b);

  // Rows.
  /// `sign` -1 rotates back.
  Tensor (*rope)(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign);
  /// The results are of `type`. w [D * taps], bias [D] or undefined. `silu`: of silu(x); a gradient goes back `through` it at
  /// that x, or at an undefined one through nothing.
  Tensor (*depthwise)(const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias, at::ScalarType type,
                      bool silu);
  Tensor (*depthwise_input_gradient)(const Tensor& dy, const Tensor& table, const Tensor& w, int64_t source_rows,
                                     at::ScalarType type, const Tensor& through, Tensor* columns);
  /// Adds to dw [D * taps] and db [D], fp32; undefined: not wanted.
  void (*depthwise_weight_gradient)(const Tensor& dy, const Tensor& x, const Tensor& table, const Tensor& dw,
                                    const Tensor& db, bool silu);
  /// y[r, c * taps + t] = x[table[t, r], c], 0 for entries -1; and the sum of dy over the places that read a row.
  Tensor (*unfold)(const Tensor& x, const Tensor& table);
  Tensor (*unfold_gradient)(const Tensor& dy, const Tensor& table, int64_t source_rows);
  /// Adds row t of dy [T, D] to row ids[t] of the gradient [V, D] fp32, in the order of t.
  void (*embedding_gradient)(const Tensor& grad, const Tensor& ids, const Tensor& dy);
  void (*drop_rows)(const Tensor& x, const Dropout& drop, int64_t first_row);

  // Attention. lse and delta [H, rows] fp32 may be column ranges of wider tensors. `into`: where results go, which are returned; of
  // undefined tensors: new ones, or those that a kernel of LibTorch's made.
  /// `bias` [H, Tq, Tk] fp32 of a single sample, or undefined.
  AttentionResult (*attention)(const AttentionInputs& in, const Tensor& bias, int64_t heads, double scale,
                               const Offsets& q_at, const Offsets& k_at, const AttentionResult& into);
  /// The output `out` or its `delta`, the other undefined.
  AttentionInputs (*attention_backward)(const AttentionInputs& in, const Tensor& out, const Tensor& d_out,
                                        const Tensor& lse, const Tensor& delta, int64_t heads, const Offsets& q_at,
                                        const Offsets& k_at, const AttentionInputs& into);
  Tensor (*attention_delta)(const Tensor& out, const Tensor& d_out, int64_t heads);
  void (*merge_attention)(const AttentionResult& sum, const AttentionResult& part, int64_t heads);

  // Linear attention (rows.h); states are fp32, other operands of any form, and results and gradients of theirs or fp32.
  // `rotated` may be the same tensor as k or q, and its gradient then is theirs. k and q are taken as max(0, x), in both uses.
  Tensor (*linear_attention_states)(const Tensor& rotated, const Tensor& k, const Tensor& v, int64_t heads,
                                    const Offsets& at);
  struct StatesGradients {
    Tensor rotated, k, v;
  };
  StatesGradients (*linear_attention_states_backward)(const Tensor& up, const Tensor& rotated, const Tensor& k,
                                                      const Tensor& v, bool same, int64_t heads, const Offsets& at);
  /// `down` [T, heads] receives the divisor of each row.
  Tensor (*linear_attention_result)(const Tensor& rotated, const Tensor& q, const Tensor& states, int64_t heads,
                                    const Offsets& at, double eps, Tensor& down);
  struct ResultGradients {
    Tensor rotated, q, states;
  };
  struct SavedResult {
    Tensor rotated, q, states, out, down;
  };
  ResultGradients (*linear_attention_result_backward)(const Tensor& dy, const SavedResult& saved, bool same,
                                                      int64_t heads, const Offsets& at);

  // Gates.
  /// x * silu(gate), alike; and the gradients of x and gate.
  Tensor (*silu_glu)(const Tensor& x, const Tensor& gate);
  std::pair<Tensor, Tensor> (*silu_glu_gradients)(const Tensor& dy, const Tensor& x, const Tensor& gate);
  // The last two are null in a table that has no kernel of their own: its convolution and silu_glu do their work.
  /// value * silu(depthwise(x)), and the gradients of value and of the convolution's result, which is computed again.
  Tensor (*gated_depthwise)(const Tensor& value, const Tensor& x, const Tensor& table, const Tensor& w,
                            const Tensor& bias, bool silu) = nullptr;
  std::pair<Tensor, Tensor> (*gated_depthwise_gradients)(const Tensor& dy, const Tensor& value, const Tensor& x,
                                                         const Tensor& table, const Tensor& w, const Tensor& bias,
                                                         bool silu) = nullptr;
};

/// Tensors for results of attention: those of `into`, and new ones for what is undefined there.
AttentionResult places_for(const AttentionInputs& in, int64_t heads, const AttentionResult& into);
AttentionInputs places_for(const AttentionInputs& in, const AttentionInputs& into);

/// Our own kernels of CPUs.
const Kernels& cpu_kernels();
/// LibTorch's operators.
const Kernels& aten_kernels();
/// LibTorch's, and in their place the fused operators of fused.h.
const Kernels& fused_kernels();

/// The table for tensors of the device of `x`. CPU tensors use cpu_kernels(), those of a GPU fused_kernels(). With
/// TESSERA_KERNELS=fused a CPU has the operators of a GPU; with TESSERA_KERNELS=aten both have LibTorch's alone: to tell a
/// fault of a kernel from one of the engine. Meta tensors use the table of the process's device (device/backend.h), or a
/// GPU's for the target that they stand for (session.h).
const Kernels& kernels(const Tensor& x);

/// While it exists, CPU and meta tensors of all threads use `table`. For tests of one table beside another.
class CpuKernelsScope {
 public:
  explicit CpuKernelsScope(const Kernels& table);
  ~CpuKernelsScope();
  CpuKernelsScope(const CpuKernelsScope&) = delete;
  CpuKernelsScope& operator=(const CpuKernelsScope&) = delete;

 private:
  const Kernels& before_;
};

}  // namespace tessera::ops
