#include "tessera/ops/convolution.h"

#include <c10/util/Exception.h>

#include "tessera/base/target.h"
#include "tessera/device/backend.h"
#include "tessera/device/failure.h"

namespace tessera::ops {

namespace {

/// Of the result, as x has its elements.
int64_t result_bytes(const at::Tensor& x, const at::Tensor& w, at::IntArrayRef stride, at::IntArrayRef padding) {
  int64_t elements = x.size(0) * w.size(0);
  for (size_t d = 0; d < stride.size(); ++d) {
    const auto dim = static_cast<int64_t>(d) + 2;
    elements *= (x.size(dim) + 2 * padding[d] - w.size(dim)) / stride[d] + 1;
  }
  return elements * static_cast<int64_t>(x.element_size());
}

}  // namespace

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, int64_t groups) {
  const std::vector<int64_t> dilation(stride.size(), 1), none(stride.size(), 0);
  const auto compute = [&] {
    return at::convolution(x, w, bias.defined() ? std::optional(bias) : std::nullopt, stride, padding, dilation,
                           /*transposed=*/false, none, groups);
  };
  if (x.is_cpu() || x.is_meta()) return compute();
  {
    // operands are copied into another layout as a whole, and the result is one tensor
    const device::WorkspaceLimit limit(
        cudnn_workspace(cudnn_setting()),
        {static_cast<int64_t>(x.nbytes()), static_cast<int64_t>(w.nbytes()), result_bytes(x, w, stride, padding)});
    try {
      return compute();
    } catch (const c10::Error&) {
      if (limit.refused() == 0 || device::has_failed()) throw;
    }
  }
  return compute();
}

}  // namespace tessera::ops
