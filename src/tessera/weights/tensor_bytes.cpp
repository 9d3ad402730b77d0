#include "tessera/weights/tensor_bytes.h"

#include "tessera/base/log.h"

namespace tessera::weights {

at::Tensor read_bytes(const Source& source, const checkpoint::TensorInfo& info) {
  at::Tensor bytes = at::empty({info.bytes()}, at::kByte);
  source.read(info, bytes.mutable_data_ptr());
  return bytes;
}

at::Tensor cast_bytes(const at::Tensor& bytes, const checkpoint::TensorInfo& info, DType to) {
  if (info.dtype == to) return bytes;
  const at::Tensor values = bytes.view(scalar_type(info.dtype));
  at::Tensor result = values.to(scalar_type(to));
  const auto infinite = [](const at::Tensor& x) { return x.to(at::kFloat).isinf().any().item<bool>(); };
  if (to == DType::f16 && infinite(result) && !infinite(values))
    log::warn("convert: " + info.name + " has values beyond fp16 (65504), they are infinite now: use --dtype bf16");
  return result;
}

}  // namespace tessera::weights
