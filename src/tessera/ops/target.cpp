#include "tessera/ops/target.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <utility>

#include "tessera/device/backend.h"

namespace tessera::ops {

namespace {

std::optional<Target>& of_thread() {
  static thread_local std::optional<Target> target;
  return target;
}

}  // namespace

const std::optional<Target>& meta_target() { return of_thread(); }

TargetScope::TargetScope(std::optional<Target> target) : before_(std::exchange(of_thread(), target)) {}
TargetScope::~TargetScope() { of_thread() = before_; }

AttentionAsked& asked_attention() {
  static thread_local AttentionAsked asked;
  return asked;
}
AttentionScope::AttentionScope(plan::Attention kernel, plan::AttentionUse* use)
    : before_(std::exchange(asked_attention(), {kernel, use})) {}
AttentionScope::~AttentionScope() { asked_attention() = before_; }

std::string why_no_cudnn_attention() {
  constexpr long kNewer = 91501;  // at lengths that are no multiple of 128 older ones are wrong
  const device::Backend* gpu = device::used();
  if (!gpu) return "a CPU computes";
  if (gpu->type != c10::DeviceType::CUDA) {
    const bool there = c10::Dispatcher::singleton()
                           .findSchemaOrThrow("aten::_scaled_dot_product_cudnn_attention", "")
                           .hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
    return there ? "" : "this device has no cuDNN";
  }
  const long version = at::detail::getCUDAHooks().versionRuntimeCuDNN();
  return version > kNewer ? ""
                          : "cuDNN here is of version " + std::to_string(version) + ", expected more than " +
                                std::to_string(kNewer) + " (9.15.1)";
}

}  // namespace tessera::ops
