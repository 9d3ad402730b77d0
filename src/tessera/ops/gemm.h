#pragma once
// Fast fp32 matrix products: c = a b or c += a b for row-major or transposed operands.
//
//   gemm(y, x, w.t());              // y  = x W^T
//   gemm(dx, dy, w);                // dx = dy W
//   gemm(dw, dy.t(), x, true);      // dW += dy^T x
//
// [Note: why not at::mm] On the AMD machines we measured (Zen 4, one thread, M = 256 and 1024, K and N of 512 and 2048)
// at::mm, which is MKL here, reaches 90-103 GFLOP/s in all three orientations and oneDNN 100-112, of a core's maximum
// of 118. LibTorch exports oneDNN's block kernel, which reaches 115-117 on blocks in the L2 cache; so we pack panels
// ourselves and call it. Sums run in the same order for any number of threads.
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// A function applied to the elements of an operand while they are packed, so that the mapped matrix never exists as a
/// whole.
using Map = void (*)(float* values, int64_t count);

/// out (+)= a_map(a) b_map(b). Two-dimensional tensors; each operand, fp32 or 16-bit, has unit stride in one of its
/// dims, the fp32 `out` in its last. Scratch: at most 640 KiB a thread, reused (1.1 MiB with 16-bit operands). Does
/// nothing on meta tensors.
void gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add = false, Map a_map = nullptr,
          Map b_map = nullptr);

/// out = a_map(a) b + bias, with a 16-bit `out` rounded once from fp32 sums: 256 rows of a and out at a time pass
/// through buffers, which are tensors and so are counted. a and out are contiguous; `bias` [n] fp32, or undefined.
void gemm_rounded(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {},
                  Map a_map = nullptr);

/// c [m, n] (+)= a [m, k] b [k, n], all row-major, for blocks that fit the cache; one thread.
void block_gemm(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t n,
                int64_t k, bool add);

/// out [cols, rows] = in [rows, cols] transposed.
void transpose(float* out, int64_t ld_out, const float* in, int64_t ld_in, int64_t rows, int64_t cols);

// Multiplies a matrix by a number in place.
//
//   scale_in_place(h, alpha / rank);

/// x *= factor, fp32 and contiguous. Does nothing on meta tensors.
void scale_in_place(const at::Tensor& x, double factor);

}  // namespace tessera::ops
