#include "tessera/ops/cpu/cpu.h"

namespace tessera::ops {

const Kernels& cpu_kernels() {
#define TESSERA_KERNEL_OF_TABLE(name) .name = cpu::name,
  static constexpr Kernels table = {.name = "cpu", TESSERA_EACH_KERNEL(TESSERA_KERNEL_OF_TABLE)};
#undef TESSERA_KERNEL_OF_TABLE
  return table;
}

}  // namespace tessera::ops
