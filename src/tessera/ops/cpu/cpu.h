#pragma once
// Our kernels of CPUs, the functions of cpu_kernels() (kernels.h, where they are described).
#include "tessera/ops/kernel_list.h"

namespace tessera::ops::cpu {

TESSERA_EACH_KERNEL(TESSERA_DECLARE_KERNEL)

}  // namespace tessera::ops::cpu
