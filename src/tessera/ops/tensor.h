#pragma once
// The few LibTorch headers the operators need (precompiled).
#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>

#include "tessera/base/check.h"
#include "tessera/base/dtype.h"
#include "tessera/torch_headers.h"

namespace tessera::ops {

// The address of a tensor's values for code that runs on the host.
//
//   const float* x = host_pointer<const float>(tensor);
//   std::memcpy(host_pointer<void>(to), host_pointer<const void>(from), from.nbytes());
//
// Reading the memory of a GPU through a host pointer ends a process without a word, so all host code asks here: a tensor
// elsewhere is an error that names it, in all builds.

/// Throws InternalError with the tensor's dtype, shape and device.
[[noreturn]] void refuse_host_pointer(const at::Tensor& t);

/// T: void or the tensor's element type, const for reading. Null for meta tensors and empty ones.
template <class T>
T* host_pointer(const at::Tensor& t) {
  if (!t.is_cpu() && !t.is_meta()) refuse_host_pointer(t);
  if constexpr (std::is_same_v<T, const void>)
    return t.const_data_ptr();
  else if constexpr (std::is_same_v<T, void>)
    return t.mutable_data_ptr();
  else if constexpr (std::is_const_v<T>)
    return t.const_data_ptr<std::remove_const_t<T>>();
  else
    return t.mutable_data_ptr<T>();
}

}  // namespace tessera::ops

namespace tessera {

// Converts an element type to LibTorch's.
//
//   at::empty({n}, scalar_type(DType::bf16));        // at::kBFloat16

inline at::ScalarType scalar_type(DType dtype) {
  constexpr at::ScalarType kTypes[] = {at::kDouble,        at::kFloat,       at::kHalf, at::kBFloat16,
                                       at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kLong, at::kInt,
                                       at::kShort,         at::kChar,        at::kByte, at::kBool};
  return kTypes[static_cast<size_t>(dtype)];  // in the order of DType
}

}  // namespace tessera
