#pragma once
// The parameter store: for each unit one flat buffer, split evenly over the shard group; this rank keeps its shard.
// A gather fills a slot of the arena with the whole buffer, and parameters are views of it: no copy-in, no copy-out.
//
//   Store store(spec, mesh, rank, at::kCPU);
//   store.set_arena(schedule.arena);
//   store.bind(unit, slot);                     // after the gather: sites see the weights
//   store.site(unit, "self_attn.q.weight").value
#include "tessera/base/mesh.h"
#include "tessera/engine/meter.h"
#include "tessera/ops/weight.h"
#include "tessera/plan/unit_spec.h"

namespace tessera::engine {

using at::Tensor;

class Store {
 public:
  /// `prefixes[u]` is cut from the unit's parameter names to give site names.
  Store(const plan::ModelSpec& model, std::vector<std::string> prefixes, const Mesh& mesh, int rank, at::Device device,
        bool trainable = true);

  int units() const { return static_cast<int>(units_.size()); }
  const plan::FlatLayout& layout(int unit) const { return units_[unit].layout; }
  const plan::UnitSpec& spec(int unit) const { return units_[unit].spec; }
  int shard_rank() const { return shard_rank_; }

  Tensor& param(int unit) { return units_[unit].param; }  ///< this rank's shard, 1-D fp32
  Tensor& grad(int unit) { return units_[unit].grad; }    ///< reduced gradient of the shard, 1-D fp32
  const Tensor& anchor(int unit) const { return units_[unit].anchor; }

  /// One allocation that holds every slot of a schedule (at least `bytes`; grows only).
  void set_arena(int64_t bytes);
  Tensor arena(int64_t offset, int64_t elements) const;  ///< a view, fp32

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
  };
  std::vector<Part> parts() const;

  int64_t persistent_bytes() const;  ///< parameter and gradient shards

 private:
  struct Unit {
    plan::UnitSpec spec;
    plan::FlatLayout layout;
    Tensor param, grad, anchor;
    std::vector<ops::WeightSite> sites;
    std::map<std::string, int, std::less<>> index;
    std::map<int64_t, std::vector<Tensor>> views;  // by slot; made once
    std::map<int64_t, std::vector<Tensor>> grad_views;
  };
  std::vector<Tensor> views_of(const Unit& unit, const Tensor& flat) const;

  std::vector<Unit> units_;
  int shard_rank_;
  at::Device device_;
  Tensor arena_;
};

}  // namespace tessera::engine
