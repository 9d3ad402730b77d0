#pragma once
// GELU in its tanh approximation, on raw rows: x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
#include <cstdint>

namespace tessera::ops {

void gelu_forward(float* out, const float* x, int64_t n);                   ///< out may be x
void gelu_backward(float* dx, const float* dy, const float* x, int64_t n);  ///< dx may be dy
inline void gelu_in_place(float* x, int64_t n) { gelu_forward(x, x, n); }

}  // namespace tessera::ops
