#include "tessera/ops/session.h"

namespace tessera::ops {

namespace {

std::array<int64_t, 4> place_of(const at::Tensor& x) {
  return {x.storage_offset(), x.size(0), x.size(1), static_cast<int64_t>(x._version())};
}

}  // namespace

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

LastInput::LastInput(const at::Tensor& x)
    : of_(x.defined() ? x.storage().getWeakStorageImpl()
                      : c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>())) {
  if (x.defined()) place_ = place_of(x);
}
bool LastInput::is(const at::Tensor& x) const {
  return place_ == place_of(x) && of_.lock().get() == x.storage().unsafeGetStorageImpl();
}

const at::Tensor& RoundedInput::rows(const at::Tensor& x) {
  take(x);
  if (!rows_.defined()) rows_ = x.to(at::kBFloat16);
  return rows_;
}

}  // namespace tessera::ops
