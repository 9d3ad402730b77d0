#include "tessera/ops/deferred_gradients.h"

#include <utility>

#include "tessera/base/check.h"

namespace tessera::ops {

namespace {
thread_local DeferredGradients* current_deferred = nullptr;
}

void DeferredGradients::run() {
  const at::NoGradGuard no_grad;
  // frees what each one holds after it is added
  for (auto& work : std::exchange(work_, {})) std::exchange(work, {})();
}

void DeferredGradients::open(WeightSite& site) {
  if (site.grad.defined() || !wants(site)) return;
  site.grad = at::empty(site.value.sizes(), site.value.options().dtype(at::kFloat));
  site.fresh = true;
  opened_.push_back(&site);
}

DeferredGradients::Scope::Scope(DeferredGradients& deferred) : deferred_(deferred) {
  check_internal(!current_deferred, "ops.later", "a scope is open on this thread");
  current_deferred = &deferred;
}

DeferredGradients::Scope::~Scope() {
  current_deferred = nullptr;
  for (WeightSite* site : std::exchange(deferred_.opened_, {})) {
    const at::Tensor sum = std::exchange(site->grad, at::Tensor());
    if (std::exchange(site->fresh, true)) continue;  // nothing was written
    deferred_.add([site, sum] { std::exchange(site->fresh, false) ? site->grad.copy_(sum) : site->grad.add_(sum); });
  }
}

DeferredGradients* DeferredGradients::current() { return current_deferred; }

}  // namespace tessera::ops
