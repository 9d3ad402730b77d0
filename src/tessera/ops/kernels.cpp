#include "tessera/ops/kernels.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"

namespace tessera::ops {

namespace {

/// TESSERA_KERNELS, else `usual`.
const Kernels& chosen(const Kernels& usual) {
  const char* name = std::getenv("TESSERA_KERNELS");
  if (!name || !*name) return usual;
  for (const Kernels* table : {&cpu_kernels(), &aten_kernels(), &fused_kernels()})
    if (std::string_view(name) == table->name) return *table;
  throw UserError(Exit::usage, "ops.kernels", std::string("TESSERA_KERNELS is '") + name + "'",
                  "set it to cpu, aten or fused, or unset it");
}

std::atomic<const Kernels*>& of_cpu() {
  static std::atomic<const Kernels*> table = &chosen(cpu_kernels());
  return table;
}

/// Of a GPU, and of meta tensors that stand for one. Our kernels of CPUs cannot compute there.
const Kernels& of_device() {
  static const Kernels& table = [&]() -> const Kernels& {
    const Kernels& wanted = chosen(fused_kernels());
    return &wanted == &cpu_kernels() ? fused_kernels() : wanted;
  }();
  return table;
}

}  // namespace

const Kernels& kernels(const Tensor& x) {
  const device::Backend* device = device::used();
  if (x.is_cpu() || (x.is_meta() && !session().target && !device)) return *of_cpu().load(std::memory_order_relaxed);
  return x.is_meta() || device ? of_device() : aten_kernels();
}

CpuKernelsScope::CpuKernelsScope(const Kernels& table) : before_(*of_cpu().exchange(&table)) {}
CpuKernelsScope::~CpuKernelsScope() { of_cpu().store(&before_); }

}  // namespace tessera::ops
