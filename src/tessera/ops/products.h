#pragma once
// Products of matrices by the library of a GPU, each by an algorithm of its own: `tessera probe --recipe` measures what the
// library offers for the shapes of a recipe and keeps the fastest in the profile, by which training then multiplies.
//
//   use_algorithms({{shape.name(), algorithm}});                    // once, before the first step
//   if (!multiplied(out, a, b, bias, /*add=*/false)) at::mm_out(out, a, b);
//
// [Note: algorithms of products] The algorithm decides the order of sums, so all ranks take the same, and so does a run that
// resumes: what was measured stands in the profile, and nothing is measured while a run trains. A shape without an entry is
// LibTorch's, which takes the first that the library's heuristic names. An algorithm is eight words that only the version of the
// library that made them can read, and times are those of one chip: the profile names both. Only algorithms are asked for that
// add parts of a sum in fp32 and in a fixed order. They work in the memory that LibTorch gives cuBLASLt anyhow, which a plan
// counts (cublas_workspace() in base/target.h).
#include <array>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/torch_headers.h"

namespace tessera::ops {

inline constexpr int kMostAlgorithms = 8;  ///< that are measured of a shape

/// out [m, n] = a b + bias, or adds to out; a [m, k], b [k, n]. All have rows in memory, or columns where they are turned.
struct ProductShape {
  at::ScalarType of = at::kBFloat16, to = at::kBFloat16;  ///< of a and b, of out and bias
  int64_t m = 0, n = 0, k = 0;
  bool a_turned = false, b_turned = false;
  int64_t a_stride = 0, b_stride = 0, out_stride = 0;  ///< values from one row, or column, to the next
  bool bias = false, add = false;
  /// "bf16 32760x5120x13824 nt 13824 13824 5120 bias": the key of a profile.
  std::string name() const;
  auto operator<=>(const ProductShape&) const = default;
};

/// A choice of the library's, which it alone can read.
struct ProductAlgorithm {
  std::array<uint64_t, 8> words = {};
  std::string text() const;  ///< 128 digits
  bool operator==(const ProductAlgorithm&) const = default;
};
std::optional<ProductAlgorithm> algorithm_of(std::string_view text);

struct ProductCall {
  ProductShape shape;
  const void *a, *b, *bias;
  void* out;
};

using ProductAlgorithms = std::map<std::string, ProductAlgorithm>;  ///< by ProductShape::name()

/// From here on products of these shapes are computed by these algorithms. Before there are other threads that compute.
void use_algorithms(ProductAlgorithms algorithms);
/// Whether multiplied() can be true for any product with `a`, or notes shapes: without, nobody need make it a result.
bool library_may_multiply(const at::Tensor& a);
/// Whether out = a b + bias, or out += a b, was computed by a chosen algorithm; else nothing was done. An algorithm that the
/// library refuses is warned about once, and not asked for again. Notes shapes of meta tensors where the session says so.
bool multiplied(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool add);
/// Operands of a shape, made by `make`, of which the library is asked on a device.
struct ProductOperands {
  at::Tensor a, b, bias, out;
  ProductCall call;
};
ProductOperands operands_of(const ProductShape& shape,
                            const std::function<at::Tensor(at::IntArrayRef, at::ScalarType)>& make);

}  // namespace tessera::ops
