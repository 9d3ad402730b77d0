#include "tessera/weights/tensor_bytes.h"

#include "tessera/base/check.h"
#include "tessera/base/log.h"

namespace tessera::weights {

using checkpoint::DType;

at::ScalarType torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f8_e4m3:
      return at::kFloat8_e4m3fn;
    case DType::f8_e5m2:
      return at::kFloat8_e5m2;
    default:
      throw InternalError("convert", std::string(checkpoint::dtype_name(dtype)) + " is not converted");
  }
}

at::Tensor read_bytes(const Source& source, const checkpoint::TensorInfo& info) {
  at::Tensor bytes = at::empty({info.bytes()}, at::kByte);
  source.read(info, bytes.mutable_data_ptr());
  return bytes;
}

at::Tensor cast_bytes(const at::Tensor& bytes, const checkpoint::TensorInfo& info, DType to) {
  if (info.dtype == to) return bytes;
  const at::Tensor values = bytes.view(torch_dtype(info.dtype));
  at::Tensor result = values.to(torch_dtype(to));
  const auto infinite = [](const at::Tensor& x) { return x.to(at::kFloat).isinf().any().item<bool>(); };
  if (to == DType::f16 && infinite(result) && !infinite(values))
    log::warn("convert: " + info.name + " has values beyond fp16 (65504), they are infinite now: use --dtype bf16");
  return result;
}

}  // namespace tessera::weights
