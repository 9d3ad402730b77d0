#pragma once
// The seam between engine and optimiser. An optimiser declares its state tensors as data and updates slices; the
// engine's store owns the buffers (engine/store/store.h), so that the plan can count them and checkpoints can move
// them.
//
//   store.make_states(adamw);                       // one buffer a unit, by what it declares
//   store.update(unit, adamw, control);             // calls adamw.update for every slice of the shard
#include "tessera/ops/tensor.h"
#include "tessera/plan/states.h"

namespace tessera::net {

/// The decision that all ranks took alike before the updates of a step.
struct StepControl {
  int64_t step = 0;  ///< optimiser step, from 1
  double lr = 0;
  double scale = 1;  ///< multiplies every gradient (clip coefficient)
};

/// Consecutive elements of one tensor, with everything that an update reads or writes.
struct Slice {
  uint64_t tensor = 0;         ///< hash of the parameter's name: a key of random numbers on any layout
  int64_t numel = 0;           ///< of the whole tensor
  int64_t begin = 0, end = 0;  ///< row-major elements of it
  void* param = nullptr;       ///< masters: fp32, or bf16 as 16 bits (plan::Masters)
  const float* grad = nullptr;
  /// The gradient in 16 bits in place of `grad`: of slices on a device alone.
  const uint16_t* half_grad = nullptr;
  at::ScalarType half_type = at::kBFloat16;
  bool on_device = false;                               ///< where all of it lies: device::used() updates it
  const std::vector<plan::StateSpec>* specs = nullptr;  ///< the states that the optimiser declared for the tensor
  std::vector<void*> states = {};                       ///< in that order

  int64_t count() const { return end - begin; }
  /// The state of that kind, null when there is none.
  template <typename T>
  T* state(std::string_view kind) const {
    for (size_t s = 0; s < states.size(); ++s)
      if ((*specs)[s].kind == kind) return static_cast<T*>(states[s]);
    return nullptr;
  }
};

/// One optimiser over flat shards, without state of its own: any rank, order or device may run any slice.
class UnitUpdate {
 public:
  virtual ~UnitUpdate() = default;
  /// The optimiser states of a parameter, which start as zeros. A pure function of the parameter.
  virtual std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const = 0;
  virtual void update(const Slice& slice, const StepControl& control) const = 0;
};

}  // namespace tessera::net
