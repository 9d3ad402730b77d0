#include "tessera/ops/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"

#if defined(__x86_64__)
#include <fbgemm/Utils.h>
#endif

#include <cstring>

#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

namespace {

constexpr int64_t kPanel = 64;   // columns of a packed panel of b: four vectors of 16, which fit the registers
constexpr int64_t kDepth = 512;  // length of the sums taken at once: a panel is 128 KiB
constexpr int64_t kRows = 256;   // rows of a packed block of a: 512 KiB

float* scratch(std::vector<float>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
  return buffer.data();
}

/// A matrix operand: element (i, j) at data[i * ld + j], or at data[j * ld + i] when transposed. 16-bit operands are
/// widened while packed.
struct Operand {
  const float* data = nullptr;
  const uint16_t* halves = nullptr;  // instead of data
  at::ScalarType type;
  int64_t ld;
  bool transposed;
  Map map;

  Operand(const at::Tensor& t, Map map)
      : type(t.scalar_type()), transposed(t.stride(1) != 1 && t.size(1) != 1), map(map) {
    ld = t.stride(transposed ? 1 : 0);
    if (is_half(type))
      halves = static_cast<const uint16_t*>(host_pointer<const void>(t));
    else
      data = host_pointer<const float>(t);
  }
  bool readable_in_place() const { return data && !transposed && !map; }

  /// Copies block [row, row + rows) x [col, col + cols) to `to`, row-major without gaps.
  void pack(float* to, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    if (halves)
      pack_halves(to, row, rows, col, cols);
    else if (transposed)
      transpose(to, cols, data + col * ld + row, ld, cols, rows);
    else
      for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * cols, data + (row + r) * ld + col, cols * sizeof(float));
    if (map) map(to, rows * cols);
  }

  void pack_halves(float* to, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    if (!transposed) {
      for (int64_t r = 0; r < rows; ++r) widen(to + r * cols, halves + (row + r) * ld + col, type, cols);
      return;
    }
    thread_local std::vector<float> buffer;
    float* lines = scratch(buffer, rows * cols);
    for (int64_t c = 0; c < cols; ++c) widen(lines + c * rows, halves + (col + c) * ld + row, type, rows);
    transpose(to, cols, lines, rows, cols, rows);
  }
};
float* panel_scratch() {
  thread_local std::vector<float> buffer;
  return scratch(buffer, kPanel * kDepth);
}
float* rows_scratch() {
  thread_local std::vector<float> buffer;
  return scratch(buffer, kRows * kDepth);
}

/// Computes rows [m0, m0 + m) of c for panels [first, last) of its columns. `a` is row-major from its first row and
/// column 0 at k0.
void multiply_panels(float* c, int64_t ldc, const float* a, int64_t lda, const Operand& b, int64_t m, int64_t n,
                     int64_t k0, int64_t k, int64_t first, int64_t last, bool add) {
  float* panel = panel_scratch();
  for (int64_t p = first; p < last; ++p) {
    const int64_t col = p * kPanel, cols = std::min(kPanel, n - col);
    b.pack(panel, k0, k, col, cols);
    block_gemm(c + col, ldc, a, lda, panel, cols, m, cols, k, add);
  }
}

/// a is read in place: every panel of b is packed once and used for all rows.
void multiply_in_place(float* c, int64_t ldc, const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k,
                       bool add) {
  at::parallel_for(0, div_up(n, kPanel), 1, [&](int64_t first, int64_t last) {
    for (int64_t k0 = 0; k0 < k; k0 += kDepth)
      multiply_panels(c, ldc, a.data + k0, a.ld, b, m, n, k0, std::min(kDepth, k - k0), first, last, add || k0 > 0);
  });
}

/// Blocks of a are packed, and the panels of b again for each.
void multiply_packed(float* c, int64_t ldc, const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k,
                     bool add) {
  at::parallel_for(0, div_up(m, kRows), 1, [&](int64_t first, int64_t last) {
    float* block = rows_scratch();
    for (int64_t i = first; i < last; ++i)
      for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
        const int64_t row = i * kRows, rows = std::min(kRows, m - row), depth = std::min(kDepth, k - k0);
        a.pack(block, row, rows, k0, depth);
        multiply_panels(c + row * ldc, ldc, block, depth, b, rows, n, k0, depth, 0, div_up(n, kPanel), add || k0 > 0);
      }
  });
}

}  // namespace

void block_gemm(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t n,
                int64_t k, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
}

void transpose(float* out, int64_t ld_out, const float* in, int64_t ld_in, int64_t rows, int64_t cols) {
#if defined(__x86_64__)
  fbgemm::transpose_simd<float>(rows, cols, in, ld_in, out, ld_out);
#else
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) out[c * ld_out + r] = in[r * ld_in + c];
#endif
}

void gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, Map a_map, Map b_map) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  check_internal(b.size(0) == k && out.size(0) == m && out.size(1) == n, "ops.gemm", "shapes do not match");
  if (out.is_meta()) return;
  if (k == 0 && !add) at::Tensor(out).zero_();
  if (m == 0 || n == 0 || k == 0) return;
  const Operand left(a, a_map), right(b, b_map);
  auto* multiply = left.readable_in_place() ? multiply_in_place : multiply_packed;
  multiply(host_pointer<float>(out), out.stride(0), left, right, m, n, k, add);
}

void gemm_rounded(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Map a_map) {
  const int64_t m = out.size(0), n = out.size(1), k = a.size(1);
  // Rows of a are widened once and then read in place, so that the panels of b can be divided among all threads.
  const auto options = out.options().dtype(at::kFloat);
  const at::Tensor sums = at::empty({std::min(m, kRows), n}, options),
                   lines = at::empty({std::min(m, kRows), k}, options);
  if (out.is_meta()) return;
  const Values from(a);
  const Results to(out);
  float *line = host_pointer<float>(lines), *sum = host_pointer<float>(sums);
  for (int64_t first = 0; first < m; first += kRows) {
    const int64_t rows = std::min(kRows, m - first);
    at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = from.read((first + r) * k, k, line + r * k);
        if (row != line + r * k) std::memcpy(line + r * k, row, k * sizeof(float));
        if (a_map) a_map(line + r * k, k);
        if (bias.defined()) std::memcpy(sum + r * n, host_pointer<const float>(bias), n * sizeof(float));
      }
    });
    gemm(sums.narrow(0, 0, rows), lines.narrow(0, 0, rows), b, bias.defined());
    at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
      to.store((first + begin) * n, (end - begin) * n, sum + begin * n);
    });
  }
}

}  // namespace tessera::ops

namespace tessera::ops {

namespace {

TESSERA_KERNEL void scale_kernel(float* out, const float* x, int64_t n, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = factor * x[i];
}

}  // namespace

void scale_in_place(const at::Tensor& x, double factor) {
  if (!x.is_meta()) scale_kernel(out_data(x), data(x), x.numel(), static_cast<float>(factor));
}

}  // namespace tessera::ops
