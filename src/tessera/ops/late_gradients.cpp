#include "tessera/ops/late_gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "tessera/base/check.h"

namespace tessera::ops {

namespace {
thread_local LateGradients* current_late = nullptr;
}

LateGradients::LateGradients() {
  check_internal(!current_late, "ops.late", "a backward is under way on this thread");
  current_late = this;
}

LateGradients::~LateGradients() { current_late = nullptr; }

void LateGradients::run() {
  if (!current_late) return;
  const at::NoGradGuard no_grad;
  for (auto& work : std::exchange(current_late->work_, {})) std::exchange(work, {})();
}

void LateGradients::add(std::function<void()> work) {
  if (!current_late) return work();
  current_late->work_.push_back(std::move(work));
}

}  // namespace tessera::ops
