#pragma once
// fp32 matrix products at the speed of the core: c = a b or c += a b for row-major or transposed operands.
//
//   gemm(y, x, w.t());              // y  = x W^T
//   gemm(dx, dy, w);                // dx = dy W
//   gemm(dw, dy.t(), x, true);      // dW += dy^T x
//
// [Note: why not at::mm] On the AMD machines we measured (Zen 4, one thread, M = 256 and 1024, K and N of 512 and 2048)
// at::mm, which is MKL here, reaches 90-103 GFLOP/s in all three orientations and oneDNN 100-112, of 118 the core can
// do. LibTorch exports oneDNN's block kernel, which reaches 115-117 on blocks that lie in the level-2 cache; so we pack
// panels ourselves and call it. Sums run in the same order for any number of threads.
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Applied to the elements of an operand as they are packed: a function of a matrix that never exists as a whole.
using Map = void (*)(float* values, int64_t count);

/// out (+)= a_map(a) b_map(b). Two-dimensional tensors; each operand, fp32 or of 16 bits, has unit stride in one of its
/// dims, `out`, which is fp32, in the last. Scratch: at most 640 KiB a thread, kept (with operands of 16 bits 1.1 MiB).
/// Meta tensors: does nothing.
void gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add = false, Map a_map = nullptr,
          Map b_map = nullptr);

/// out = a_map(a) b + bias, `out` of 16 bits rounded once from sums in fp32: 256 rows of a and out at a time pass
/// through buffers, which are tensors and so are counted. a and out are contiguous; `bias` [n] fp32, or undefined.
void gemm_rounded(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {},
                  Map a_map = nullptr);

/// c [m, n] (+)= a [m, k] b [k, n], all row-major, for blocks that fit the cache; one thread.
void block_gemm(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t m, int64_t n,
                int64_t k, bool add);

/// out [cols, rows] = in [rows, cols] transposed.
void transpose(float* out, int64_t ld_out, const float* in, int64_t ld_in, int64_t rows, int64_t cols);

}  // namespace tessera::ops
