#include "tessera/ops/tangent.h"

#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tessera/base/check.h"

namespace tessera::ops {

using at::Tensor;

namespace {

constexpr uint64_t kLevel = 0;  // LibTorch has one

std::mutex mutex_of_modes;
std::atomic<int> modes = 0;  // of all threads, which share LibTorch's level

}  // namespace

ForwardMode::ForwardMode() {
  check_internal(!at::GradMode::is_enabled(), "ops.tangent", "forward mode runs without a graph");
  const std::lock_guard<std::mutex> lock(mutex_of_modes);
  if (modes == 0) {
    const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
    check_internal(level == kLevel, "ops.tangent", "LibTorch has entered another level of forward mode");
  }
  ++modes;
}

ForwardMode::~ForwardMode() {
  const std::lock_guard<std::mutex> lock(mutex_of_modes);
  if (--modes == 0) torch::autograd::ForwardADLevel::release_idx(kLevel);
}

bool moves(const Tensor& x) { return modes > 0 && x.defined() && x._fw_grad(kLevel).defined(); }

bool any_moves(std::initializer_list<const Tensor*> operands) {
  return modes > 0 && std::ranges::any_of(operands, [](const Tensor* x) { return moves(*x); });
}

Moving parts(const Tensor& x) {
  if (!moves(x)) return {x};
  Tensor tangent = x._fw_grad(kLevel);
  if (tangent._is_zerotensor()) tangent = at::zeros(tangent.sizes(), x.options());  // LibTorch's, without memory
  return {x._fw_primal(kLevel), tangent.contiguous()};
}

Tensor moving(const Tensor& value, const Tensor& tangent) {
  if (!tangent.defined()) return value;
  check_internal(modes > 0 && tangent.sizes() == value.sizes(), "ops.tangent",
                 "a tangent has another shape than its value, or no ForwardMode is there");
  return at::_make_dual(value, tangent.to(value.scalar_type()), kLevel);
}

Tensor sum_of_tangents(std::initializer_list<Tensor> tangents) {
  Tensor sum;
  for (const Tensor& t : tangents)
    if (t.defined()) sum = sum.defined() ? sum + t : t;
  return sum;
}

}  // namespace tessera::ops
