#include "tessera/ops/kernel_list.h"

namespace tessera::ops {

#define TESSERA_KERNEL_OF_CPU(name) .name = cpu::name,
#define TESSERA_KERNEL_OF_ATEN(name) .name = aten::name,

const Kernels& cpu_kernels() {
  static constexpr Kernels table = {.name = "cpu", TESSERA_EACH_KERNEL(TESSERA_KERNEL_OF_CPU)};
  return table;
}

const Kernels& aten_kernels() {
  static constexpr Kernels table = {.name = "aten", TESSERA_EACH_KERNEL(TESSERA_KERNEL_OF_ATEN)};
  return table;
}

#undef TESSERA_KERNEL_OF_CPU
#undef TESSERA_KERNEL_OF_ATEN

}  // namespace tessera::ops
