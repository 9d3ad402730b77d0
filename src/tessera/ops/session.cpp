#include "tessera/ops/session.h"

namespace tessera::ops {

Session& session() {
  thread_local Session of_thread;
  return of_thread;
}

void run_works(Works& works) {
  const at::NoGradGuard no_grad;
  for (auto& work : std::exchange(works, {})) std::exchange(work, {})();
}

void DeferredGradients::open(WeightSite& site) {
  if (site.grad.defined() || !wants(site)) return;
  site.grad = at::empty(site.value.sizes(), site.value.options().dtype(at::kFloat));
  site.fresh = true;
  opened_.push_back(&site);
}

/// Leaves what was written to the sites' own memory to run(), and takes that memory from them.
void DeferredGradients::close() {
  for (WeightSite* site : std::exchange(opened_, {})) {
    const at::Tensor sum = std::exchange(site->grad, at::Tensor());
    if (std::exchange(site->fresh, true)) continue;  // nothing was written
    add([site, sum] { std::exchange(site->fresh, false) ? site->grad.copy_(sum) : site->grad.add_(sum); });
  }
}

}  // namespace tessera::ops
