#include "tessera/ops/products.h"

namespace tessera::ops {

ProductFlops& product_flops() {
  thread_local ProductFlops flops;
  return flops;
}

}  // namespace tessera::ops
