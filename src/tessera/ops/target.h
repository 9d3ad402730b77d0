#pragma once
// The chip that meta tensors stand for, where that is not the one of the process: a plan for a GPU is measured on a machine
// without one.
//
//   const TargetScope scope(target("sm_90", "plan.profile"));
//   const Tensor y = attention(q, k, v, ...);        // on meta: allocates what LibTorch's kernel allocates on an H200
//
// [Note: memory of a target] On meta tensors the functions of ops/aten allocate what they allocate on a GPU: LibTorch's
// operators have meta forms that allocate their results, and what a kernel takes beside these is allocated by us. Of what is
// used in training that is the flash attention alone: products have their workspace once for all (base/target.h), and norms,
// sums and elementwise kernels take none.
#include <optional>

#include "tessera/base/target.h"

namespace tessera::ops {

/// While it exists, meta tensors of this thread stand for tensors of that target. Scopes nest.
class TargetScope {
 public:
  /// Empty: of the process's own device.
  explicit TargetScope(std::optional<Target> target);
  ~TargetScope();
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  const std::optional<Target> before_;
};

/// What meta tensors of this thread stand for; empty: tensors of the process's device.
const std::optional<Target>& meta_target();

}  // namespace tessera::ops
