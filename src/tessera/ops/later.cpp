#include "tessera/ops/later.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::ops {

namespace {
thread_local Later* current_later = nullptr;
}

void Later::run() {
  const at::NoGradGuard no_grad;
  for (auto& work : std::exchange(work_, {})) std::exchange(work, {})();  // what each holds goes as soon as it is added
}

void Later::open(WeightSite& site) {
  if (site.grad.defined() || !wants(site)) return;
  site.grad = at::empty(site.value.sizes(), site.value.options().dtype(at::kFloat));
  site.fresh = true;
  opened_.push_back(&site);
}

Later::Scope::Scope(Later& later) : later_(later) {
  check_internal(!current_later, "ops.later", "a scope is open on this thread");
  current_later = &later;
}

Later::Scope::~Scope() {
  current_later = nullptr;
  for (WeightSite* site : std::exchange(later_.opened_, {})) {
    const at::Tensor sum = std::exchange(site->grad, at::Tensor());
    if (std::exchange(site->fresh, true)) continue;  // nothing was written
    later_.add([site, sum] { std::exchange(site->fresh, false) ? site->grad.copy_(sum) : site->grad.add_(sum); });
  }
}

Later* Later::current() { return current_later; }

}  // namespace tessera::ops
