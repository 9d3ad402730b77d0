#pragma once
// Every kernel in LibTorch's own operators, the functions of aten_kernels() (kernels.h, where they are described). Sums
// over tokens have a fixed order on every device: reductions of a dimension and matrix products, never atomic adds.
#include "tessera/ops/kernel_list.h"

namespace tessera::ops::aten {

TESSERA_EACH_KERNEL(TESSERA_DECLARE_KERNEL)

}  // namespace tessera::ops::aten
