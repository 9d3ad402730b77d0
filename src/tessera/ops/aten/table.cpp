#include "tessera/ops/aten/aten.h"

namespace tessera::ops {

const Kernels& aten_kernels() {
#define TESSERA_KERNEL_OF_TABLE(name) .name = aten::name,
  static constexpr Kernels table = {.name = "aten", TESSERA_EACH_KERNEL(TESSERA_KERNEL_OF_TABLE)};
#undef TESSERA_KERNEL_OF_TABLE
  return table;
}

}  // namespace tessera::ops
