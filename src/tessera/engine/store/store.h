#pragma once
// The parameter store: for each unit flat buffers (plan::UnitLayout), split evenly over the ranks that share them; this
// rank keeps its shards. A gather fills a slot of the arena with the whole of each, and parameters are views of it: no
// copy-in, no copy-out.
//
//   Store store(spec, prefixes, plan, rank, at::kCPU);
//   store.set_arena(schedule.arena);
//   store.bind(unit, slot);                     // after the gather: sites see the weights
//   store.site(unit, "self_attn.q.weight").value
#include "tessera/comm/comm.h"
#include "tessera/engine/memory/disk.h"
#include "tessera/engine/memory/host_memory.h"
#include "tessera/engine/memory/meter.h"
#include "tessera/net/unit_update.h"
#include "tessera/ops/scalar_type.h"
#include "tessera/ops/weight.h"
#include "tessera/plan/nvme.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

using at::Tensor;
class Workers;

/// Arena offsets of what was brought for an update, -1 for what rests on the device.
struct Staged {
  int64_t param = -1, grad = -1, states = -1;
  bool as_stored = true;  ///< the gradient is as it rests (Plan::grad); else fp32, where its reduction left it
};

class Store {
 public:
  /// `prefixes[u]` is cut from the unit's parameter names to give site names. Of the plan it reads mesh, strategies,
  /// tiers and the form of parameters. `nvme`: where is what rests on disk. Without `trainable` there are only
  /// parameters.
  Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const plan::Plan& plan, int rank,
        at::Device device, bool trainable = true, plan::DiskPlace nvme = {});

  int units() const { return static_cast<int>(units_.size()); }
  const plan::UnitLayout& layout(int unit) const { return units_[unit].layout; }
  /// Whether the unit is of a pipeline stage of this rank; of others there are no buffers.
  bool owns(int unit) const { return units_[unit].owned; }
  int owner(int unit) const { return units_[unit].owner; }  ///< place on the pp axis of who has it
  const plan::UnitSpec& spec(int unit) const { return units_[unit].spec; }
  /// The axes of the ranks that share a buffer.
  const std::vector<Axis>& axes(int unit, int buffer) const { return units_[unit].axes[buffer]; }
  /// Of those that hold the same of it.
  const std::vector<Axis>& outer_axes(int unit, int buffer) const { return units_[unit].outer_axes[buffer]; }
  /// Of ranks that hold the same shard of a buffer, one speaks for all: counts it in norms and writes it. In two levels
  /// each speaks for its own piece.
  bool is_primary(int unit, int buffer) const;
  /// The part of a tensor like the buffer's shard that this rank updates: all of it, or its piece.
  Tensor partition(int unit, int buffer, const Tensor& shard) const;
  /// Sum of squares of what this rank speaks for in a gradient shard of the unit.
  double squares(int unit, const Tensor& grad) const;

  /// This rank's shards of the unit's parameters, 1-D bytes, one buffer after the other.
  Tensor& param(int unit) {
    await_param(unit);
    return units_[unit].param;
  }
  /// One of them, 1-D: fp32 masters, or their bf16 part (plan::Masters), or bytes of what is stored otherwise. `from`:
  /// arena offset of where all of the unit's lie, -1 where they rest on the device.
  Tensor shard(int unit, int buffer, int64_t from = -1);
  /// Reduced gradient of the trained shards, 1-D of Plan::grad's type; undefined where it is used up in the backward
  /// (plan::Plan::transient_gradient).
  Tensor& grad(int unit) { return units_[unit].grad; }
  const Tensor& anchor(int unit) const { return units_[unit].anchor; }
  /// The first unit that is trained at all: gradients flow back to it and no farther. 0 without any.
  int first_trained() const;

  /// One allocation that holds every slot of a schedule (at least `bytes`; grows only).
  void set_arena(int64_t bytes);
  /// The same, smaller as well: what the slots held is lost. Between steps, when another schedule follows.
  void change_arena(int64_t bytes);
  Tensor arena(int64_t offset, int64_t elements) const;  ///< a view, fp32

  // store_tiers.cpp: buffers that rest on the host or on disk
  /// One hop of a fetch or stash; `host`: host memory on the way from or to the disk.
  void move(const plan::Instruction& in, char* host);
  /// Where the gradient shard is while it is in the arena, fp32; what rests on the device as that is there always
  /// (offset -1).
  Tensor grad_at(int unit, int64_t offset);
  /// Rounds a whole gradient shard in the arena to what it will rest as, which leaves it fp32. Nothing for fp32.
  void round_gradient(const Tensor& shard) const;
  int64_t host_bytes() const;  ///< of buffers that rest on the host
  int64_t disk_bytes() const;

  /// Gives every reduced gradient that rests on the device its place there, and takes it from those that a plan updates
  /// in the backward. Between steps; gradients are lost.
  void place_gradients(const plan::Plan& plan);

  /// Fills a slot with one of the unit's buffers, in the plan's form of slots, from all of `group` (null: from this
  /// rank alone, which has the whole). `from`: arena offset of this rank's shards, -1 where they rest on the device.
  /// Gives the bytes sent. What travels in 16 bits and computes in fp32 lands in the upper half of its place and is
  /// widened there.
  int64_t gather(int unit, int buffer, int64_t slot, comm::Group* group, int64_t from = -1);

  /// Points the unit's sites at a slot (offset into the arena), or at the shard itself when it is whole (-1).
  void bind(int unit, int64_t slot);
  void unbind(int unit);
  /// Points the sites' gradients at a gradient slot (or the persistent gradient, -1); fresh: nothing written yet.
  void bind_grad(int unit, int64_t slot, bool fresh);
  /// Zeroes what no operator wrote, and unbinds.
  void finish_grad(int unit);

  ops::WeightSite* find(int unit, std::string_view site);  ///< null when the unit has no such parameter
  const plan::ParamSpec* find_spec(int unit, std::string_view site) const;
  ops::WeightSite& site(int unit, std::string_view site);
  /// The sites whose gradients are wanted.
  std::vector<ops::WeightSite*> trained_sites(int unit);

  /// Every parameter of every unit that has elements in this rank's shards: [begin, end) of the part that this rank of
  /// tp uses lies at `offset` of the buffer's shard.
  struct Part {
    int unit, buffer, param;
    int64_t begin, end, offset;
    int range;     ///< index into states(unit).ranges
    bool updated;  ///< here; else another replica has its states, and what is split of its masters
  };
  std::vector<Part> parts() const;
  uint8_t* data(const Part& part);
  /// The part of a parameter that this rank of tp uses, [begin, end) for each dimension; empty: all of it.
  std::vector<std::pair<int64_t, int64_t>> box(const Part& part) const;
  int tp() const { return tp_; }

  // store_states.cpp: masters and the optimiser's states
  /// Makes the states that the optimiser declares, zero. Before masters that are split are set.
  void make_states(const net::UnitUpdate& update);
  const plan::StateLayout& states(int unit) const { return units_[unit].states; }
  Tensor& state_buffer(int unit) {  ///< 1-D bytes, as states(unit) says
    await_states(unit);
    return units_[unit].buffer;
  }
  void* state(const Part& part, size_t state);
  /// One optimiser step of the unit's shard, by this thread, or by `workers` together: the same bits.
  void update(int unit, const net::UnitUpdate& update, const net::StepControl& control, Staged staged,
              Workers* workers = nullptr);
  /// Elements first..first+count of a part as fp32 values, whatever their form. What is set is exact in fp32 and split
  /// masters, rounded to nearest in bf16 ones.
  void set_masters(const Part& part, int64_t first, int64_t count, const float* values);
  /// Of split masters that another replica updates there is the bf16 part.
  void read_masters(const Part& part, int64_t first, int64_t count, float* values);
  Tensor masters(int unit, int buffer);  ///< the shard as fp32; itself where it is
  plan::Masters master_form() const { return masters_; }
  /// The form of a part: what is frozen is fp32, or as it is stored.
  plan::Masters master_form(const Part& part) const {
    return layout(part.unit).buffers[part.buffer].trainable ? masters_ : plan::Masters::fp32;
  }

  // store_experts.cpp: denoisers of one form that take turns (Plan::experts); all else here is about the one that is in
  int experts() const { return static_cast<int>(inactive_.size()) + 1; }
  int expert() const { return expert_; }  ///< which of them is in; the first at the start
  /// Brings one in, between steps; the one it changes places with rests where the plan says. Bytes that go from tier to
  /// tier do so from here on in a thread of their own, in the order in which a step needs them: whoever asks for a
  /// buffer that is not there yet waits for it.
  void switch_to(int expert);
  struct Moved {
    int64_t bytes = 0;               ///< both ways
    double seconds = 0, waited = 0;  ///< that it took, and that lanes waited for
  };
  Moved take_moved();  ///< since the last call; waits for what is on its way
  /// For as long as it lives the store is about another expert, where that rests and without moving it: to fill it,
  /// save it, hand it out. No step runs meanwhile.
  class ExpertScope {
   public:
    ExpertScope(Store& store, int expert);
    ~ExpertScope();
    ExpertScope(const Look&) = delete;

   private:
    Store& store_;
    const int before_;
  };

  /// What a unit's products and attention run in.
  at::ScalarType compute(int unit) const { return units_[unit].spec.narrow ? scalar_type(slots_) : at::kFloat; }

  DType stored(const Part& part) const { return layout(part.unit).buffers[part.buffer].stored; }

  int64_t persistent_bytes() const;  ///< parameter and gradient shards

 private:
  struct Unit {
    plan::UnitSpec spec;
    plan::UnitLayout layout;
    std::vector<plan::Held> held;  // of each buffer
    std::vector<std::vector<Axis>> axes, outer_axes;
    std::vector<int64_t> param_at;  // byte at which each buffer's shard begins
    bool owned = true;              // by a stage of this rank
    int owner = 0;
    Tensor param, grad, anchor;
    plan::StateLayout states;  // of this rank's shard
    Tensor buffer;
    plan::UnitPlan plan;                                              // tiers
    int64_t param_extent = -1, grad_extent = -1, states_extent = -1;  // on disk
    std::vector<ops::WeightSite> sites;
    std::map<std::string, int, std::less<>> index;
    /// The same buffers of an expert that has no turn.
    struct Rest {
      Tensor param, buffer;
      int64_t param_extent = -1, states_extent = -1;
    };
    std::vector<Rest> rests;                       // as inactive_ says whose
    std::map<int64_t, std::vector<Tensor>> views;  // by slot; made once
    std::map<int64_t, std::vector<Tensor>> grad_views;
  };
  std::vector<Tensor> views_of(const Unit& unit, const Tensor& flat, bool gradients) const;
  int64_t gather_stored(int unit, int buffer, int64_t slot, comm::Group* group, int64_t from);
  net::Slice slice(int unit, const plan::StateLayout::Range& range, Staged staged = {});
  void open_disk(const plan::Plan& plan, const plan::DiskPlace& place, bool trainable);
  /// A zero buffer on the tier; on disk its extent too.
  Tensor make_buffer(int64_t count, at::ScalarType type, plan::Tier tier, engine::Part part, int64_t& extent);

  class Mover;
  /// Changes places with an expert that rests: by name alone, or, where tiers differ, `moving` the bytes.
  void swap_with(size_t rest, bool moving);
  void await_param(int unit) const;
  void await_states(int unit) const;
  size_t inactive_index(int expert) const;  ///< among those that rest

  std::vector<Unit> units_;
  std::vector<int> inactive_;  // the experts that have no turn
  int expert_ = 0;
  plan::Tier idle_ = plan::Tier::device;
  const int shard_rank_, tp_, tp_rank_;
  const bool first_replica_;
  plan::Masters masters_;
  const DType gathered_, slots_;
  const at::ScalarType grad_type_;  // of gradients where they rest
  at::Device device_;
  Tensor arena_;
  std::vector<std::unique_ptr<HostMemory>> host_;
  std::unique_ptr<Disk> disk_;
  std::shared_ptr<Mover> mover_;  // of experts that rest on another tier; else none
};

}  // namespace tessera::engine
