#include "tessera/ops/kernels.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/target.h"

namespace tessera::ops {

namespace {

const Kernels& chosen_for_cpu() {
  const char* name = std::getenv("TESSERA_KERNELS");
  if (!name || !*name) return cpu_kernels();
  for (const Kernels* table : {&cpu_kernels(), &aten_kernels()})
    if (std::string_view(name) == table->name) return *table;
  throw UserError(Exit::usage, "ops.kernels", std::string("TESSERA_KERNELS is '") + name + "'",
                  "set it to cpu or aten, or unset it");
}

std::atomic<const Kernels*>& of_cpu() {
  static std::atomic<const Kernels*> table = &chosen_for_cpu();
  return table;
}

}  // namespace

const Kernels& kernels(const Tensor& x) {
  if (x.is_cpu()) return *of_cpu().load(std::memory_order_relaxed);
  // meta tensors stand for those that the process computes with, or of a target
  const bool on_cpu = x.is_meta() && !meta_target() && !device::used();
  return on_cpu ? *of_cpu().load(std::memory_order_relaxed) : aten_kernels();
}

CpuKernelsScope::CpuKernelsScope(const Kernels& table) : before_(*of_cpu().exchange(&table)) {}
CpuKernelsScope::~CpuKernelsScope() { of_cpu().store(&before_); }

}  // namespace tessera::ops
