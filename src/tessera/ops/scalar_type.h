#pragma once
// Converts an element type to LibTorch's.
//
//   at::empty({n}, scalar_type(DType::bf16));        // at::kBFloat16
#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"

namespace tessera {

inline at::ScalarType scalar_type(DType dtype) {
  constexpr at::ScalarType kTypes[] = {at::kDouble,        at::kFloat,       at::kHalf, at::kBFloat16,
                                       at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kLong, at::kInt,
                                       at::kShort,         at::kChar,        at::kByte, at::kBool};
  return kTypes[static_cast<size_t>(dtype)];  // in the order of DType
}

}  // namespace tessera
