#pragma once
// The chip that meta tensors stand for, where that is not the one of the process: a plan for a GPU is measured on a machine
// without one.
//
//   const TargetScope scope(target("sm_90", "plan.profile"));
//   const Tensor y = attention(q, k, v, ...);        // on meta: allocates what LibTorch's kernel allocates on an H200
//
// [Note: memory of a target] On meta tensors the functions of ops/aten allocate what they allocate on a GPU: LibTorch's
// operators have meta forms that allocate their results, and what a kernel takes beside these is allocated by us. Of what is
// used in training that is attention alone, flash's or cuDNN's: products have their workspace once for all (base/target.h), and norms,
// sums and elementwise kernels take none.
//
// The same notes what attention takes, on meta tensors as where it computes:
//
//   plan::AttentionUse use;
//   const AttentionScope scope(plan::Attention::cudnn, &use);
#include <optional>

#include "tessera/base/target.h"
#include "tessera/plan/attention.h"
#include "tessera/torch_headers.h"

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

/// What attention of a thread asks for on a GPU (plan/attention.h), and who asks what it takes.
struct AttentionAsked {
  plan::Attention kernel = plan::Attention::flash;
  plan::AttentionUse* use = nullptr;
  std::string site = {};  ///< of the forwards that follow, where someone asks
};
AttentionAsked& asked_attention();  ///< of this thread

/// While it exists, this thread asks for this. Scopes nest.
class AttentionScope {
 public:
  explicit AttentionScope(plan::Attention kernel, plan::AttentionUse* use = nullptr);
  ~AttentionScope();
  AttentionScope(const AttentionScope&) = delete;
  AttentionScope& operator=(const AttentionScope&) = delete;

 private:
  const AttentionAsked before_;
};

/// What keeps the device of this process from attention by cuDNN; empty: nothing.
std::string why_no_cudnn_attention();

/// Computes attention of these shapes forward and backward once, so that cuDNN has compiled what a step calls: on this thread,
/// whose own its plans are.
void compile_attention(const plan::AttentionUse& use, at::ScalarType type, at::Device device);

}  // namespace tessera::ops
