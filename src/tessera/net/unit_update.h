#pragma once
// The seam between engine and optimiser. An optimiser declares its state tensors as data and updates slices; the
// engine's store owns the buffers (engine/store/store.h), so that the plan can count them and checkpoints can move
// them.
//
//   store.make_states(adamw);                       // one buffer a unit, by what it declares
//   update_unit(store, unit, adamw, control, {});   // calls adamw.update for every slice of the shard
//
// [Note: sums over tensors] An optimiser whose update of an element depends on the whole tensor names rounds of sums. For
// each round the engine calls add_sums() for every slice, adds the sums of all ranks that update the tensor, and calls
// take_sums() once for each tensor; update() follows after the last round. Sums and `whole` states are of the whole
// tensor, on every rank that updates a part of it, so that no rank gathers it.
//
// [Note: totals] An optimiser whose step size depends on sums over all parameters adds its part of them in update(). The
// engine keeps what this rank has summed; the ranks exchange it at the next `norm`, with everything else that they agree
// on there, and the updates after it have the step size that followed (StepControl::d).
//
// [Note: whole matrices] An optimiser may update tensors that are plan::ParamSpec::whole as matrices. For each slice of such a
// tensor it writes a direction; the engine brings the directions of a tensor together on one rank (plan/whole_matrices.h),
// which transforms the whole of it; its slices come back, and update() applies them.
#include <array>

#include "tessera/ops/tensor.h"
#include "tessera/plan/states.h"

namespace tessera::net {

/// Sums over all parameters; what each is, the optimiser knows.
using Totals = std::array<double, 2>;

/// The decision that all ranks took alike before the updates of a step.
struct StepControl {
  int64_t step = 0;  ///< optimiser step, from 1
  double lr = 0;
  double scale = 1;  ///< multiplies every gradient (clip coefficient)
  double d = 0;      ///< the step size of optimisers that find it themselves ([Note: totals])
};

/// Where the elements of a rank's part of a tensor are in the whole tensor: element e is e / width * inner + first +
/// e % width. All of the default: the part is consecutive, and e counts in the whole tensor.
struct Cut {
  int64_t inner = 0, width = 0, first = 0;
};

/// Consecutive elements of one tensor, with everything that an update reads or writes.
struct Slice {
  const plan::ParamSpec* spec = nullptr;  ///< of the whole tensor
  uint64_t tensor = 0;                    ///< hash of the parameter's name: a key of random numbers on any layout
  int64_t numel = 0;                      ///< of the whole tensor
  int64_t begin = 0, end = 0;             ///< row-major elements of it
  void* param = nullptr;                  ///< masters: fp32, or bf16 as 16 bits (plan::Masters)
  const float* grad = nullptr;
  /// The gradient in 16 bits in place of `grad`: of slices on a device alone.
  const uint16_t* half_grad = nullptr;
  at::ScalarType half_type = at::kBFloat16;
  bool on_device = false;                               ///< where all of it lies: device::used() updates it
  const std::vector<plan::StateSpec>* specs = nullptr;  ///< the states that the optimiser declared for the tensor
  std::vector<void*> states = {};                       ///< in that order
  Cut cut = {};
  std::vector<float*> sums = {};  ///< of each round so far, as take_sums() left them
  /// Of a tensor that is `whole`: the slice's part of the direction, in the plan's dtype of matrices (StateFormat::matrices).
  void* direction = nullptr;
  /// Where update() adds the slice's part, of an optimiser that has totals. Of a slice on a device it writes a part for each
  /// ops::kUpdateGrain elements there.
  Totals* totals = nullptr;

  int64_t count() const { return end - begin; }
  /// The state of that kind, null when there is none.
  template <typename T>
  T* state(std::string_view kind) const {
    for (size_t s = 0; s < states.size(); ++s)
      if ((*specs)[s].kind == kind) return static_cast<T*>(states[s]);
    return nullptr;
  }
};

/// One optimiser over flat shards, without state of its own: any rank, order or device may run any slice, with the same bits.
/// Of a slice on a device all that a pointer leads to lies there, sums too.
class UnitUpdate {
 public:
  virtual ~UnitUpdate() = default;
  /// The optimiser states of a parameter, which start as zeros. A pure function of the parameter.
  virtual std::vector<plan::StateSpec> states(const plan::ParamSpec& param) const = 0;
  virtual void update(const Slice& slice, const StepControl& control) const = 0;

  virtual bool totals() const { return false; }  ///< [Note: totals]

  // [Note: sums over tensors]
  virtual int rounds() const { return 0; }
  /// The number of a tensor's sums in a round.
  virtual int64_t sums(const plan::ParamSpec& /*param*/, int /*round*/) const { return 0; }
  /// Adds the slice's part. Writes no states.
  virtual void add_sums(const Slice& /*slice*/, const StepControl& /*control*/, int /*round*/, double* /*sums*/) const {
  }
  /// Takes the sums over all ranks, slice.sums[round], into the tensor's `whole` states; may replace them by what later
  /// rounds and update() need.
  virtual void take_sums(const Slice& /*slice*/, const StepControl& /*control*/, int /*round*/) const {}

  // [Note: whole matrices]
  /// Writes slice.direction, and the states that it follows from.
  virtual void direct(const Slice& /*slice*/, const StepControl& /*control*/) const {}
  /// Transforms the whole tensor's direction in place. `matrix`: flat; `work`: bytes beside it, as many as
  /// plan::transform_bytes() says.
  virtual void transform(const plan::ParamSpec& /*param*/, const at::Tensor& /*matrix*/,
                         const at::Tensor& /*work*/) const {}
};

}  // namespace tessera::net
