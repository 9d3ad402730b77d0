#pragma once
// One tensor of a source in memory, and its way into another dtype.
//
//   at::Tensor bytes = read_bytes(source, info);
//   bytes = cast_bytes(bytes, info, DType::bf16);              // warns when fp16 cannot hold a value
#include "tessera/ops/scalar_type.h"
#include "tessera/torch_headers.h"
#include "tessera/weights/convert_source.h"

namespace tessera::weights {

/// All bytes of a tensor as stored, 1-D kByte.
at::Tensor read_bytes(const Source& source, const checkpoint::TensorInfo& info);

/// What read_bytes gave for `info`, in the dtype `to`; itself where that is its own.
at::Tensor cast_bytes(const at::Tensor& bytes, const checkpoint::TensorInfo& info, DType to);

}  // namespace tessera::weights
