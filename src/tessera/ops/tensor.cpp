#include "tessera/ops/tensor.h"

#include <c10/core/ScalarType.h>

namespace tessera::ops {

void refuse_host_pointer(const at::Tensor& t) {
  std::string shape;
  for (const int64_t size : t.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  throw InternalError("ops.host", "code of the host was given a " + std::string(c10::toString(t.scalar_type())) +
                                      " tensor [" + shape + "] in the memory of " + t.device().str());
}

}  // namespace tessera::ops
