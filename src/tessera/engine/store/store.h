#pragma once
// The parameter store: flat buffers for each unit (plan::UnitLayout), split evenly over the ranks that share them; this
// rank keeps its shards. A gather fills a slot of the arena with whole buffers, and parameters are views of the slot:
// there is no copy-in and no copy-out.
//
//   Store store(spec, prefixes, plan, rank, at::kCPU);
//   store.set_arena(schedule.arena);
//   store.bind(unit, slot);                     // after the gather: sites see the weights
//   store.site(unit, "self_attn.q.weight").value
#include "tessera/comm/comm.h"
#include "tessera/device/streams.h"
#include "tessera/engine/store/disk.h"
#include "tessera/engine/store/expert_swap.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/engine/store/meter.h"
#include "tessera/engine/store/shared_weights.h"
#include "tessera/net/unit_update.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/weight.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

using at::Tensor;

/// Arena offsets of the offloaded buffers that were fetched for an update, -1 for buffers that are kept on the device.
struct Staged {
  int64_t param = -1, grad = -1, states = -1;
  bool as_stored = true;  ///< the gradient has its stored dtype (Plan::grad); else it is fp32, as its reduction left it
};

class Store {
 public:
  /// Site names are the unit's parameter names without `prefixes[u]`. The store reads the plan's mesh, strategies,
  /// tiers and dtypes. `nvme`: the place of buffers that are offloaded to disk. Without `trainable` there are only
  /// parameters. `shared`: frozen weights on the host that it need not keep alone; null: none.
  Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const plan::Plan& plan, int rank,
        at::Device device, bool trainable = true, plan::DiskPlace nvme = {},
        std::unique_ptr<SharedWeights> shared = nullptr);

  /// For a pass beside those of `lender`, whose plan offloads nothing: it has gradients of its own, and borrows the rest.
  explicit Store(const Store& lender);
  /// The arena's bytes from `begin` on, until give_back_arena().
  void borrow_arena(const Store& lender, int64_t begin);
  void give_back_arena();
  /// Parameters and states of an expert that is inactive there, until it is activated.
  void borrow(const Store& lender, int expert);

  int units() const { return static_cast<int>(units_.size()); }
  const plan::UnitLayout& layout(int unit) const { return units_[unit].layout; }
  /// Whether the unit belongs to a pipeline stage of this rank; other units have no buffers here.
  bool owns(int unit) const { return units_[unit].owned; }
  int owner(int unit) const { return units_[unit].owner; }  ///< pp_rank of the unit's stage
  const plan::UnitSpec& spec(int unit) const { return units_[unit].spec; }
  /// The axes of the ranks over which a buffer is sharded.
  const std::vector<Axis>& axes(int unit, int buffer) const { return units_[unit].axes[buffer]; }
  /// The axes of the ranks that hold the same shard.
  const std::vector<Axis>& outer_axes(int unit, int buffer) const { return units_[unit].outer_axes[buffer]; }
  /// Whether this rank counts its shard of a buffer in norms and writes it to checkpoints: one of the ranks that hold
  /// the same shard does. With two_level each of them does so for its own partition.
  bool is_primary(int unit, int buffer) const;
  /// The part of a shard-sized tensor that this rank updates: all of it, or with two_level this replica's partition
  /// (ZeRO++ hpZ: the shard is the secondary partition, this part the primary one).
  Tensor partition(int unit, int buffer, const Tensor& shard) const;
  /// Sums of squares of a gradient shard of the unit: of each buffer for which this rank is primary, an element of `sums`,
  /// fp64, which lies where the gradient does.
  void squares(int unit, const Tensor& grad, const Tensor& sums) const;

  /// This rank's shards of the unit's parameters as 1-D bytes, one buffer after the other.
  Tensor& param(int unit) {
    await_param(unit);
    settle(units_[unit].param);
    return units_[unit].param;
  }
  /// One of these shards, 1-D: fp32 masters, or their bf16 half (plan::Masters), or bytes for other dtypes. `from`:
  /// arena offset of the unit's fetched shards, -1 if they are kept on the device.
  Tensor shard(int unit, int buffer, int64_t from = -1);
  /// Reduced gradient of the trained shards, 1-D of dtype Plan::grad; undefined for units that are updated in the
  /// backward (plan::Plan::transient_gradient).
  Tensor& grad(int unit) {
    settle(units_[unit].grad);
    return units_[unit].grad;
  }
  const Tensor& anchor(int unit) const { return units_[unit].anchor; }
  /// The first unit with a trained parameter, where the backward ends; 0 if there is none.
  int first_trained() const;

  /// One allocation that holds every slot of a schedule (at least `bytes`; grows only).
  void set_arena(int64_t bytes);
  /// The same, but it can shrink. The slots' contents are lost: only between steps, when another schedule follows.
  void change_arena(int64_t bytes);
  Tensor arena(int64_t offset, int64_t elements) const;  ///< a view, fp32
  const Tensor& arena() const { return arena_; }         ///< all of it; undefined before there is one

  // Buffers that are offloaded to the host or to disk. Between steps a buffer on disk is mapped memory; within a step it is
  // read and written past the page cache.
  /// One hop of a fetch or stash; `host`: the bounce buffer of a hop from or to the disk.
  void move(const plan::Instruction& in, char* host);
  void move_gradient(const Tensor& values, const Tensor& stored, bool fetch);
  /// The fp32 gradient shard at an offset of the arena; -1: the gradient that is kept on the device.
  Tensor grad_at(int unit, int64_t offset);
  /// Rounds a whole fp32 gradient shard in the arena to the values of its stored dtype; it stays fp32. Does nothing if
  /// gradients are stored as fp32.
  void round_gradient(const Tensor& shard) const;
  /// The schedule that uses the store is over, and its streams have come to its end at `after`: who asks for a buffer in
  /// host memory waits for that. Null: a schedule begins, whose instructions are ordered among each other.
  void rest(const device::Mark* after) { after_ = after, settled_ = false; }
  /// Between steps, after set_masters() and the like: buffers on disk, which were written as mapped memory, reach it, and
  /// their checksums are not those of before.
  void flush_disk();
  int64_t host_bytes() const;  ///< of buffers that are offloaded to the host, of shared ones this rank's part
  int64_t disk_bytes() const;

  /// Allocates the reduced gradients that this plan keeps on the device, and frees those of units that it updates in
  /// the backward. Only between steps: gradients are lost.
  void place_gradients(const plan::Plan& plan);

  /// Fills a slot with one of the unit's buffers, in the slots' dtype, from all ranks of `group` (null: this rank has
  /// the whole buffer). `from`: arena offset of this rank's shards, -1 if they are kept on the device. Returns the
  /// bytes sent. A buffer that is sent in 16 bits and used in fp32 arrives in the upper half of its range and is
  /// widened there.
  int64_t gather(int unit, int buffer, int64_t slot, comm::Group* group, int64_t from = -1,
                 plan::Codes codes = plan::Codes::none);

  /// The same of a buffer that is gathered as codes, into a slot with these: of rows, or of columns. Returns the bytes sent of
  /// scales and of codes.
  std::array<int64_t, 2> gather_codes(int unit, int buffer, int64_t slot, comm::Group* group, int64_t from,
                                      plan::Codes codes, bool columns);

  /// Points the unit's sites at a slot (offset into the arena) with these codes, or at the shard if that is the whole buffer (-1).
  void bind(int unit, int64_t slot, plan::Codes codes = plan::Codes::none);
  void unbind(int unit);
  /// Points the sites' gradients at a gradient slot (-1: the persistent gradient). `fresh`: the first write overwrites,
  /// else it adds.
  void bind_grad(int unit, int64_t slot, bool fresh);
  /// Zeroes the gradients that no operator wrote, and unbinds.
  void finish_grad(int unit);

  ops::WeightSite* find(int unit, std::string_view site);  ///< null when the unit has no such parameter
  const plan::ParamSpec* find_spec(int unit, std::string_view site) const;
  ops::WeightSite& site(int unit, std::string_view site);
  /// While it lives no parameter is trained.
  class FrozenScope {
   public:
    explicit FrozenScope(Store& store) : store_(store) { store_.freeze(true); }
    ~FrozenScope() { store_.freeze(false); }
    FrozenScope(const FrozenScope&) = delete;

   private:
    Store& store_;
  };
  /// The sites of trained parameters.
  std::vector<ops::WeightSite*> trained_sites(int unit);

  /// A parameter with elements in this rank's shards: elements [begin, end) of this rank's tensor-parallel part are at
  /// `offset` of the buffer's shard.
  struct Part {
    int unit, buffer, param;
    int64_t begin, end, offset;
    int range;     ///< index into states(unit).ranges
    bool updated;  ///< by this rank; else another replica has its states and the low halves of split masters
  };
  std::vector<Part> parts() const;
  // Frozen weights that ranks of a machine share are written by one of them, between begin_fill() and await_fill(), which all
  // ranks call together (SharedWeights). Without any, both do nothing.
  void begin_fill();
  void await_fill();
  /// Whether this rank writes the part; set_masters() of others does nothing.
  bool fills(const Part& part) const;
  /// Whether this rank counts what is written to the part in sums over ranks: one of those that hold it does.
  bool counts_filled(const Part& part) const;
  /// Where bytes lie: in host memory, or on the device, where the host reads them through ops::HostBytes.
  struct Range {
    void* data;
    bool on_device;
  };
  Range data(const Part& part);
  /// Where the active expert's will be when expert `next` is the active one: behind an ExpertScope that began beside it.
  Range data_behind(const Part& part, int next);
  /// This rank's tensor-parallel part of a parameter, [begin, end) for each dimension; empty: all of it.
  std::vector<std::pair<int64_t, int64_t>> box(const Part& part) const;
  int tp() const { return tp_; }
  at::Device device() const { return device_; }

  // Masters in their several forms, and the optimiser's states
  /// Makes the states that the optimiser declares, as zeros. Must come before split masters are set: their low halves
  /// are a state.
  void make_states(const net::UnitUpdate& update);
  const plan::StateLayout& states(int unit) const { return units_[unit].states; }
  Tensor& state_buffer(int unit) {  ///< 1-D bytes, laid out by states(unit)
    await_states(unit);
    settle(units_[unit].buffer);
    return units_[unit].buffer;
  }
  Range state(const Part& part, size_t state);
  /// What an update of the range reads and writes. `staged`: where a schedule has fetched offloaded buffers.
  net::Slice slice(int unit, const plan::StateLayout::Range& range, Staged staged = {});
  /// Adds to what take_totals() returns.
  void add_totals(int unit, const net::Totals& totals);
  double* device_totals(int unit);  ///< of a device's updates: a pair there, which they add to
  /// What the updates since the last call summed of the elements that this rank counts ([Note: totals]). Their
  /// instructions are done.
  net::Totals take_totals();
  /// Sets elements first..first+count of a part from fp32 values: exact in fp32 and split masters, rounded to nearest
  /// in bf16 ones.
  void set_masters(const Part& part, int64_t first, int64_t count, const float* values);
  /// Reads them as fp32 values. If another replica updates split masters, only their bf16 half is here.
  void read_masters(const Part& part, int64_t first, int64_t count, float* values);
  Tensor masters(int unit, int buffer);  ///< the shard as fp32 in host memory; no copy if it is that
  plan::Masters master_form() const { return masters_; }
  DType matrix_type() const { return matrices_; }  ///< of whole matrices in an update
  /// The form of a part's masters; fp32 for frozen parameters, which have none.
  plan::Masters master_form(const Part& part) const {
    return layout(part.unit).buffers[part.buffer].trainable ? masters_ : plan::Masters::fp32;
  }

  // Experts: several denoisers of one shape (Plan::experts), of which one is active in a step; all other members are about
  // it. Each has parameters and states of its own; they share layout, slots and gradients, so that the same schedule runs a
  // step of any of them.
  int experts() const { return static_cast<int>(inactive_.size()) + 1; }
  /// The first so many of them; teachers come behind them, and have no states (Plan::teachers).
  int trained_experts() const { return experts() - teachers_; }
  int expert() const { return expert_; }  ///< the active one; at first 0
  /// Activates an expert, between steps; the plan places the buffers of the one that it replaces. A thread of its own
  /// moves bytes between tiers, in the order in which a step needs them; access to a buffer that is not there yet
  /// waits.
  void switch_to(int expert);
  ExpertSwap::Moved take_moved();  ///< since the last call; waits for the thread
  /// Asks, on any thread and after the store too, for what the device is at in a swap: "swap of experts 0 and 1: parameters of
  /// blocks.3"; an empty text: in none. An empty function: it never moves bytes.
  std::function<std::string()> swap_on_device() const;
  /// While it lives, another expert is the active one, without moving its bytes: to fill, save or export it. No step
  /// may run meanwhile.
  class ExpertScope {
   public:
    ExpertScope(Store& store, int expert);
    ~ExpertScope();
    ExpertScope(const ExpertScope&) = delete;

   private:
    Store& store_;
    const int before_;
  };

  /// The dtype of a unit's products and attention.
  at::ScalarType compute(int unit) const { return units_[unit].spec.narrow ? scalar_type(slots_) : at::kFloat; }
  /// Whether the unit's linears multiply in 8 bits: those of blocks, where the plan says so.
  bool fp8(int unit) const { return fp8_ && units_[unit].spec.narrow && plan::is_block(units_[unit].spec); }

  DType stored(const Part& part) const { return layout(part.unit).buffers[part.buffer].stored; }

  int64_t persistent_bytes() const;  ///< parameter and gradient shards

 private:
  void freeze(bool all);
  bool is_primary(int unit, int buffer, int rank) const;
  bool shares(const Part& part) const;
  Tensor counted(int unit, int buffer, const Tensor& grad) const;
  struct Unit {
    plan::UnitSpec spec;
    plan::UnitLayout layout;
    std::vector<plan::Held> held;  // of each buffer: which shard and partition
    std::vector<std::vector<Axis>> axes, outer_axes;
    std::vector<int64_t> param_at;  // byte at which each buffer's shard begins
    bool owned = true;              // it belongs to a stage of this rank
    int owner = 0;
    Tensor param, grad, anchor;
    plan::StateLayout states;  // of this rank's shard
    Tensor buffer;
    plan::UnitPlan plan;                                              // tiers
    int64_t param_extent = -1, grad_extent = -1, states_extent = -1;  // on disk
    std::vector<ops::WeightSite> sites;
    std::map<std::string, int, std::less<>> index;
    /// The same buffers of an inactive expert.
    struct Inactive {
      Tensor param, buffer;
      int64_t param_extent = -1, states_extent = -1;
    };
    std::vector<Inactive> inactive;  // in the order of inactive_
    std::map<std::pair<int64_t, plan::Codes>, std::vector<ops::WeightSite>>
        views;  // values and codes by slot; made once
    std::map<int64_t, std::vector<Tensor>> grad_views;
    net::Totals totals = {};  // of updates since take_totals()
  };
  Tensor device_totals_;  // pairs by unit; beside what the engine plans
  std::vector<Tensor> views_of(const Unit& unit, const Tensor& flat, bool gradients, plan::Codes codes) const;
  void find_codes(const Unit& unit, const Tensor& flat, plan::Codes codes, std::vector<ops::WeightSite>& sites) const;
  int64_t gather_stored(int unit, int buffer, int64_t slot, comm::Group* group, int64_t from, plan::Codes codes);
  void open_disk(const plan::Plan& plan, const plan::DiskPlace& place, bool trainable);
  /// The parameters of an expert, zeros, shared where they may be; sets `extent` on disk.
  Tensor make_parameters(int unit, int expert, plan::Tier tier, int64_t& extent);
  /// A buffer of zeros on the tier; sets `extent` on disk.
  Tensor make_buffer(int64_t count, at::ScalarType type, plan::Tier tier, engine::Part part, int64_t& extent);

  void settle(const Tensor& buffer);

  /// Where swaps will move bytes: its memory is taken before the first step.
  void make_swap();
  /// Makes the inactive expert `index` the active one: swaps the two's buffers, or, if `moving` and their tiers differ,
  /// the bytes in them. Of experts with a shared base it always swaps the bytes of trained parameters.
  void swap_with(size_t index, bool moving);
  void await_param(int unit) const;
  void await_states(int unit) const;
  size_t inactive_index(int expert) const;  ///< in inactive_

  std::vector<Unit> units_;
  std::vector<int> inactive_;  // the inactive experts
  int expert_ = 0, teachers_ = 0;
  bool shared_base_ = false;  // frozen parameters are those of all experts (Plan::shared_base)
  plan::Tier idle_ = plan::Tier::device;
  const Mesh mesh_;
  const int rank_, tp_, tp_rank_;
  plan::Masters masters_;
  const DType matrices_;
  const DType gathered_, slots_;
  const bool fp8_;
  const at::ScalarType grad_type_;  // of stored gradients
  at::Device device_;
  Tensor arena_;
  std::vector<std::unique_ptr<HostMemory>> host_;
  std::unique_ptr<SharedWeights> shared_;  // null: none
  std::unique_ptr<Disk> disk_;
  const device::Mark* after_ = nullptr;
  bool settled_ = false;              // the host has waited for it
  std::shared_ptr<ExpertSwap> swap_;  // null: inactive experts are kept on the same tiers
};

}  // namespace tessera::engine
