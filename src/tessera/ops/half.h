#pragma once
// 16-bit values (bf16, fp16) in kernels that compute in fp32: operands are widened some rows at a time and results
// rounded to nearest even when stored, so there is no fp32 copy of a tensor and no second rounding.
//
//   const Values x(tensor);                                  // fp32 or 16-bit
//   const float* row = x.read(t * n, n, half_scratch(0, n)); // in place, or widened into the scratch
//   Results y(out);
//   float* to = y.place(t * n, half_scratch(1, n));          // the destination, or the scratch
//   y.store(t * n, n, to);                                   // rounds; nothing to do for fp32
#include <algorithm>

#include "tessera/ops/tensor.h"
#include "tessera/ops/widen.h"

namespace tessera::ops {

inline bool is_half(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }
inline bool is_half(const at::Tensor& t) { return is_half(t.scalar_type()); }

/// Number of rows that row kernels process at once if a tensor is 16-bit.
inline constexpr int64_t kHalfRows = 8;

/// A small tensor (a bias, a norm's weight) as fp32: itself, or a copy.
inline at::Tensor as_floats(const at::Tensor& t) { return is_half(t) ? t.to(at::kFloat) : t; }

class Values {
 public:
  explicit Values(const at::Tensor& t)
      : data_(static_cast<const char*>(host_pointer<const void>(t))), type_(t.scalar_type()), half_(is_half(type_)) {}
  const float* read(int64_t first, int64_t n, float* scratch) const {
    if (!half_) return reinterpret_cast<const float*>(data_) + first;
    widen(scratch, data_ + first * 2, type_, n);
    return scratch;
  }
  /// Columns [begin, end) of `rows` rows of `width`, from row `first` on; returns a pointer to column 0 of the first
  /// row.
  const float* read_columns(int64_t first, int64_t rows, int64_t width, int64_t begin, int64_t end,
                            float* scratch) const {
    if (!half_) return reinterpret_cast<const float*>(data_) + first * width;
    for (int64_t r = 0; r < rows; ++r)
      widen(scratch + r * width + begin, data_ + ((first + r) * width + begin) * 2, type_, end - begin);
    return scratch;
  }
  bool half() const { return half_; }

 private:
  const char* data_;
  at::ScalarType type_;
  bool half_;
};

class Results {
 public:
  explicit Results(const at::Tensor& t)
      : data_(static_cast<char*>(host_pointer<void>(t))), type_(t.scalar_type()), half_(is_half(type_)) {}
  float* place(int64_t first, float* scratch) const {
    return half_ ? scratch : reinterpret_cast<float*>(data_) + first;
  }
  void store(int64_t first, int64_t n, const float* values) const {
    if (half_) narrow(data_ + first * 2, values, type_, n);
  }
  bool half() const { return half_; }

 private:
  char* data_;
  at::ScalarType type_;
  bool half_;
};

/// Calls body(first, count) for [begin, end): in chunks if a tensor is 16-bit, else once.
template <class Body>
void each_piece(int64_t begin, int64_t end, bool half, int64_t piece, const Body& body) {
  if (!half) piece = end - begin;
  for (int64_t first = begin; first < end; first += piece) body(first, std::min(piece, end - first));
}

}  // namespace tessera::ops
