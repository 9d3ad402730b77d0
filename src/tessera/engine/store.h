#pragma once
// The parameter store: for each unit one flat buffer, split evenly over the shard group; this rank keeps its shard.
// A gather fills a slot of the arena with the whole buffer, and parameters are views of it: no copy-in, no copy-out.
//
//   Store store(spec, prefixes, plan, rank, at::kCPU);
//   store.set_arena(schedule.arena);
//   store.bind(unit, slot);                     // after the gather: sites see the weights
//   store.site(unit, "self_attn.q.weight").value
#include "tessera/comm/comm.h"
#include "tessera/engine/disk.h"
#include "tessera/engine/host_memory.h"
#include "tessera/engine/meter.h"
#include "tessera/net/unit_update.h"
#include "tessera/ops/weight.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

using at::Tensor;

/// Arena offsets of what was brought for an update, -1 for what rests on the device.
struct Staged {
  int64_t param = -1, grad = -1, states = -1;
};

class Store {
 public:
  /// `prefixes[u]` is cut from the unit's parameter names to give site names. Of the plan it reads mesh, strategies,
  /// tiers and the form of parameters. `nvme`: folder of what rests on disk. Without `trainable` there are only
  /// parameters.
  Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const plan::Plan& plan, int rank,
        at::Device device, bool trainable = true, std::string nvme = {});

  int units() const { return static_cast<int>(units_.size()); }
  const plan::FlatLayout& layout(int unit) const { return units_[unit].layout; }
  const plan::UnitSpec& spec(int unit) const { return units_[unit].spec; }
  /// This rank's place among those that share the unit; 0 for all where every rank holds the whole.
  int shard_rank(int unit) const { return units_[unit].layout.shards > 1 ? shard_rank_ : 0; }
  /// Of ranks that hold the same shard of the unit, one speaks for all: counts it in norms and writes it.
  bool speaks_for(int unit) const { return first_replica_ && (units_[unit].layout.shards > 1 || shard_rank_ == 0); }

  /// This rank's shard, 1-D: fp32 masters, or their bf16 part (plan::Masters).
  Tensor& param(int unit) { return units_[unit].param; }
  Tensor& grad(int unit) { return units_[unit].grad; }  ///< reduced gradient of the shard, 1-D fp32
  const Tensor& anchor(int unit) const { return units_[unit].anchor; }

  /// One allocation that holds every slot of a schedule (at least `bytes`; grows only).
  void set_arena(int64_t bytes);
  /// The same, smaller as well: what the slots held is lost. Between steps, when another schedule follows.
  void change_arena(int64_t bytes);
  Tensor arena(int64_t offset, int64_t elements) const;  ///< a view, fp32

  // store_tiers.cpp: buffers that rest on the host or on disk
  /// One hop of a fetch or stash; `host`: host memory on the way from or to the disk.
  void move(const plan::Instruction& in, char* host);
  /// Where the shard is while it is in the arena; what rests on the device is there always (offset -1).
  Tensor param_at(int unit, int64_t offset);
  Tensor grad_at(int unit, int64_t offset);
  int64_t host_bytes() const;  ///< of buffers that rest on the host
  int64_t disk_bytes() const;

  /// Fills a slot with the unit's parameters, as fp32, from all of `group` (null: from this rank alone, which has the
  /// whole). `shard`: arena offset of this rank's shard, -1 where it rests on the device. Gives the bytes sent. What
  /// travels as bf16 lands in the upper half of the slot and is widened in place.
  int64_t gather(int unit, int64_t slot, comm::Group* group, int64_t shard = -1);

  /// Points the unit's sites at a slot (offset into the arena), or at the shard itself when it is whole (-1).
  void bind(int unit, int64_t slot);
  void unbind(int unit);
  /// Points the sites' gradients at a gradient slot (or the persistent gradient, -1); fresh: nothing written yet.
  void bind_grad(int unit, int64_t slot, bool fresh);
  /// Zeroes what no operator wrote, and unbinds.
  void finish_grad(int unit);

  ops::WeightSite* find(int unit, std::string_view site);  ///< null when the unit has no such parameter
  ops::WeightSite& site(int unit, std::string_view site);

  /// Every parameter of every unit that has elements in this rank's shard: [begin, end) of the parameter lies at
  /// `offset` of the shard.
  struct Part {
    int unit, param;
    int64_t begin, end, offset;
    int range;  ///< index into states(unit).ranges
  };
  std::vector<Part> parts() const;

  // store_states.cpp: masters and the optimiser's states
  /// Makes the states that the optimiser declares, zero. Before masters that are split are set.
  void make_states(const net::UnitUpdate& update);
  const plan::StateLayout& states(int unit) const { return units_[unit].states; }
  Tensor& state_buffer(int unit) { return units_[unit].buffer; }  ///< 1-D bytes, as states(unit) says
  void* state(const Part& part, size_t state);
  /// One optimiser step of the unit's shard.
  void update(int unit, const net::UnitUpdate& update, const net::StepControl& control, Staged staged);
  /// Elements first..first+count of a part as fp32 values, whatever their form. What is set is exact in fp32 and split
  /// masters, rounded to nearest in bf16 ones.
  void set_masters(const Part& part, int64_t first, int64_t count, const float* values);
  void read_masters(const Part& part, int64_t first, int64_t count, float* values);
  Tensor masters(int unit);  ///< the shard as fp32; itself where it is
  plan::Masters master_form() const { return masters_; }

  int64_t persistent_bytes() const;  ///< parameter and gradient shards

 private:
  struct Unit {
    plan::UnitSpec spec;
    plan::FlatLayout layout;
    Tensor param, grad, anchor;
    plan::StateLayout states;  // of this rank's shard
    Tensor buffer;
    plan::UnitPlan plan;                                              // tiers
    int64_t param_extent = -1, grad_extent = -1, states_extent = -1;  // on disk
    std::vector<ops::WeightSite> sites;
    std::map<std::string, int, std::less<>> index;
    std::map<int64_t, std::vector<Tensor>> views;  // by slot; made once
    std::map<int64_t, std::vector<Tensor>> grad_views;
  };
  std::vector<Tensor> views_of(const Unit& unit, const Tensor& flat) const;
  net::Slice slice(int unit, const plan::StateLayout::Range& range, Staged staged = {});
  void open_disk(const plan::ModelSpec& model, const plan::Plan& plan, const std::string& folder, bool trainable);
  /// A zero buffer on the tier; on disk its extent too.
  Tensor make_buffer(int64_t count, at::ScalarType type, plan::Tier tier, engine::Part part, int64_t& extent);

  std::vector<Unit> units_;
  int shard_rank_;
  bool first_replica_;
  plan::Masters masters_;
  plan::ParamType gathered_;
  at::Device device_;
  Tensor arena_;
  std::vector<std::unique_ptr<HostMemory>> host_;
  std::unique_ptr<Disk> disk_;
};

}  // namespace tessera::engine
