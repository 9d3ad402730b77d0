#pragma once
// A weight as seen by the fused operators: late-bound views of the slot that a unit currently occupies.
// [Note: weights outside autograd] Weights are not autograd variables. An operator's node keeps a pointer to its
// WeightSite, reads the value from its current slot when it runs, and adds the weight gradient directly to the flat
// gradient buffer. So no graph holds a weight, slots may move between forward and backward, and nothing is copied.
// Every such node takes the unit's anchor, a leaf that requires grad: autograd::grad prunes nodes that lead to none of
// its inputs, so without the anchor weight gradients would silently be zero.
#include "tessera/ops/dropout.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct SharedWidth;  // ops.h

/// Lines of 8-bit floats, [lines, length padded], each with a scale, [lines] fp32 ([Note: products in 8 bits] in kernels.h).
struct Fp8Lines {
  at::Tensor codes, scales;
};

struct WeightSite {
  at::Tensor value;      ///< view of the unit's slot; the store re-points it at every gather; undefined when released
  at::Tensor grad = {};  ///< view of the gradient buffer, fp32; undefined when frozen or outside backward
  bool fresh = true;     ///< nothing is accumulated yet: the first writer assigns, later ones add
  bool frozen = false;   ///< not trained
  std::array<int64_t, 2> blocks = {};  ///< [out, in] of a frozen value in blocks of 8-bit codes (ops/frozen.h)
  /// Of rows and of columns, both [out, in], where a gather has brought these ([Note: gathers of codes] in plan/unit_spec.h): then
  /// the value has the shape alone.
  std::array<Fp8Lines, 2> codes = {};
  bool in_codes() const { return codes[0].codes.defined() || codes[1].codes.defined(); }
};

// The adapter of a frozen linear: a low-rank pair B A (LoRA); or two matrices that make the change D of the weight:
// s P o Q (LoHa, element by element) or s P x Q (LoKr, Kronecker: block (i, j) is P[i, j] Q). Each with or without a
// magnitude for DoRA (frozen.h).
//
//   Adapter pair{.a = &a, .b = &b, .scale = alpha / rank};
//   Adapter lokr{.scale = 1, .kind = Adapter::Kind::kronecker, .first = {.whole = &w1}, .second = {.a = &a, .b = &b}};

/// The trained tensors of a site, late-bound like all weights ([Note: weights outside autograd]): fp32, or
/// 16-bit if gathered so; their gradients are fp32.
struct Adapter {
  WeightSite* a = nullptr;          ///< [r, in]
  WeightSite* b = nullptr;          ///< [out, r]
  WeightSite* magnitude = nullptr;  ///< [out], for DoRA; excludes dropout
  /// Of a magnitude, where W has some columns of each row: sums over the ranks that have the others; outlives the graph.
  const SharedWidth* whole_rows = nullptr;
  double scale = 1;
  Dropout dropout = {};   ///< on the adapter's input
  Dropout left_out = {};  ///< of a pair's rows between A and B: ranks, or all of them; of other kinds rows of the input

  enum class Kind { low_rank, elementwise, kronecker };
  /// One of the two matrices: whole, or the product of a [.., r] and b [r, ..].
  struct Half {
    WeightSite *whole = nullptr, *a = nullptr, *b = nullptr;
  };
  Kind kind = Kind::low_rank;
  Half first = {}, second = {};  ///< of the other kinds
};

/// Throws InternalError where a factor of an adapter that changes the weight is missing, or the sizes are not those of a
/// weight [out, in].
void check_change(const Adapter& adapter, int64_t out, int64_t in);

/// y += drop(z) D^T, with D the change of the weight (weight_change.cpp). z [T, in], y [T, out], each fp32 or 16-bit,
/// contiguous. `gelu`: gelu_tanh(z) in place of z.
void add_change(const at::Tensor& y, const at::Tensor& z, const Adapter& adapter, bool gelu);

/// The gradients of the factors, and dz += drop(dy D). dz [T, in] may be undefined: it is not wanted. It is the gradient
/// of gelu_tanh(z) if `gelu`.
void add_change_gradients(const at::Tensor& dz, const at::Tensor& dy, const at::Tensor& z, const Adapter& adapter,
                          bool gelu);

/// rows [n, in] of a weight, those from `first` on, become rows of W + D. fp32, contiguous.
void add_change_to(const at::Tensor& rows, const Adapter& adapter, int64_t first);

/// With a magnitude m, where |W'| [out] are the lengths of the rows of W + D: y [T, out] becomes m / |W'| y + bias.
void scale_by_magnitude(const at::Tensor& y, const Adapter& adapter, const at::Tensor& norms, const WeightSite* bias);

/// Its gradients, with y as it became: adds that of the magnitude, returns that of what was scaled.
at::Tensor magnitude_gradients(const at::Tensor& dy, const at::Tensor& y, const Adapter& adapter,
                               const at::Tensor& norms, const WeightSite* bias);

/// The gradient of a bias, of a linear and of one that is added after a sum over ranks (engine/tensor_parallel.h): db (+)= the sum of the rows of dy [T, out], fp32 or 16-bit, into the site's fp32 gradient, which must be defined.
/// Each thread sums some columns, so the order of summation is fixed.
void bias_gradient(const at::Tensor& dy, WeightSite& bias);

}  // namespace tessera::ops
