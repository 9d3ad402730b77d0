#include "tessera/ops/kernels.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tangent.h"

namespace tessera::ops {

ErrorValue error_of(const ErrorForm& form, double d) {
  const double c = form.c, size = std::abs(d), root = std::sqrt(d * d + c * c), sign = d < 0 ? -1 : d > 0 ? 1 : 0;
  const ErrorValue squares{d * d, 2 * d}, absolute{size, sign}, soft{root - c, root > 0 ? d / root : 0},
      hard = size < c ? ErrorValue{d * d / 2, d} : ErrorValue{c * (size - c / 2), c * sign};
  // In the order of ErrorKind. The last is |d| - log 2 + log(1 + exp(-2 |d|)), which overflows for no d.
  const ErrorValue kinds[kErrorKinds] = {squares,
                                         absolute,
                                         {2 * c * soft.error, 2 * c * soft.slope},
                                         {2 * soft.error, 2 * soft.slope},
                                         soft,
                                         hard,
                                         {hard.error / c, hard.slope / c},
                                         {size - M_LN2 + std::log1p(std::exp(-2 * size)), std::tanh(d)}};
  ErrorValue sum;
  for (size_t kind = 0; kind < kErrorKinds; ++kind)
    if (form.weights[kind] != 0) {
      sum.error += form.weights[kind] * kinds[kind].error;
      sum.slope += form.weights[kind] * kinds[kind].slope;
    }
  return sum;
}

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

std::atomic<const Kernels*>& table_of_cpu() {
  static std::atomic<const Kernels*> table = &chosen(cpu_kernels());
  return table;
}

/// Of a GPU, and of meta tensors that stand for one. Our kernels of CPUs cannot compute there.
const Kernels& table_of_device() {
  static const Kernels& table = [&]() -> const Kernels& {
    const Kernels& wanted = chosen(fused_kernels());
    return &wanted == &cpu_kernels() ? fused_kernels() : wanted;
  }();
  return table;
}

}  // namespace

const Kernels& kernels(const Tensor& x) {
  check_internal(!moves(x), "ops.kernels",
                 "this operator has no forward mode: its rule would stand beside its backward");
  const device::Backend* device = device::used();
  if (x.is_cpu() || (x.is_meta() && !session().target && !device))
    return *table_of_cpu().load(std::memory_order_relaxed);
  return x.is_meta() || device ? table_of_device() : aten_kernels();
}

AttentionResult places_for(const AttentionInputs& in, int64_t heads, const AttentionResult& into) {
  return {into.out.defined() ? into.out : at::empty_like(in.q),
          into.lse.defined() ? into.lse : at::empty({heads, in.q.size(0)}, in.q.options().dtype(at::kFloat))};
}
AttentionInputs places_for(const AttentionInputs& in, const AttentionInputs& into) {
  const auto place = [](const Tensor& to, const Tensor& like) { return to.defined() ? to : at::empty_like(like); };
  return {place(into.q, in.q), place(into.k, in.k), place(into.v, in.v)};
}

CpuKernelsScope::CpuKernelsScope(const Kernels& table) : before_(*table_of_cpu().exchange(&table)) {}
CpuKernelsScope::~CpuKernelsScope() { table_of_cpu().store(&before_); }

}  // namespace tessera::ops
