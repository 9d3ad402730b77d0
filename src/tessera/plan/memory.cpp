#include "tessera/plan/memory.h"

#include <algorithm>

namespace tessera::plan {

namespace {

/// Live bytes of activations along the compute lane, instruction by instruction; mirrors engine/executor.cpp.
class Walk {
 public:
  Walk(const ModelSpec& model, const Plan& plan, bool train) : model_(model), plan_(plan), train_(train) {}

  /// Highest bytes while `in` runs.
  int64_t run(const Instruction& in) {
    const int64_t before = live_;
    const int units = static_cast<int>(model_.units.size());
    switch (in.op) {
      case Op::forward: {
        if (in.unit == 0) {
          live_ += model_.inputs + (train_ ? model_.targets : 0);
          cond_.assign(cond_.size(), false);
        }
        const Footprint& f = model_.units[in.unit].cost;
        const int64_t start = live_;
        const bool keep = train_ && plan_.units[in.unit].activations == Policy::keep;
        const int64_t peak = start + (keep ? f.keep_peak : f.forward_peak);
        live_ += f.out + f.cond + (keep ? f.saved : 0);
        if (!train_ && in.unit > 0) live_ -= model_.units[in.unit - 1].cost.out;
        return std::max(peak, before);
      }
      case Op::loss:
        live_ += model_.loss_grad - model_.targets;
        live_ -= model_.units.back().cost.out;  // the prediction
        return before + model_.loss_peak;
      case Op::finish: {
        int64_t cond = 0;
        for (const auto& unit : model_.units) cond += unit.cost.cond;
        live_ -= model_.inputs + cond + model_.units.back().cost.out;
        return before;
      }
      case Op::recompute:
        live_ += model_.units[in.unit].cost.recompute_saved;
        return before + model_.units[in.unit].cost.recompute_peak;
      case Op::backward: {
        const Footprint& f = model_.units[in.unit].cost;
        const bool keep = plan_.units[in.unit].activations == Policy::keep;
        const int64_t peak = before + f.backward_peak;
        live_ -= keep ? f.saved : f.recompute_saved;
        if (in.unit > 0) live_ -= model_.units[in.unit - 1].cost.out;  // this unit's input was the last to hold it
        live_ -= in.unit + 1 == units ? model_.loss_grad : model_.units[in.unit + 1].cost.grad_in;
        live_ += f.grad_in;
        cond_.resize(std::max(cond_.size(), f.grad_cond.size()));
        for (size_t c = 0; c < f.grad_cond.size(); ++c) {
          if (f.grad_cond[c] == 0 || cond_[c]) continue;
          cond_[c] = true;
          cond_bytes_ += f.grad_cond[c];
          live_ += f.grad_cond[c];
        }
        if (in.unit == 0) {  // the micro-batch is over
          live_ -= model_.inputs + cond_bytes_ + f.grad_in;
          for (const auto& unit : model_.units) live_ -= unit.cost.cond;
          cond_bytes_ = 0;
          cond_.assign(cond_.size(), false);
        }
        return peak;
      }
      default:
        return before;
    }
  }

  int64_t live() const { return live_; }

 private:
  const ModelSpec& model_;
  const Plan& plan_;
  const bool train_;
  int64_t live_ = 0, cond_bytes_ = 0;
  std::vector<bool> cond_;  // conditioning gradients that exist
};

}  // namespace

MemoryCurve memory_curve(const ModelSpec& model, const Plan& plan, const Schedule& schedule, int rank, int64_t arena,
                         StateCost states) {
  MemoryCurve curve;
  MemoryParts base;
  for (const auto& unit : model.units) {
    const int64_t shard = flat_layout(unit, plan.mesh.shard_size()).shard;
    base.parameters += shard * 4;
    base.gradients += shard * 4;
    base.states += shard * states.bytes_per_element;
  }
  curve.persistent = base.total();
  base.slots = std::max(arena, schedule.arena);
  base.activations = model.resident;
  Walk walk(model, plan, schedule.phase == "train");
  for (size_t i = 0; i < schedule.list.size(); ++i) {
    const Instruction& in = schedule.list[i];
    const int64_t held = walk.live();
    const int64_t highest = base.total() + walk.run(in);
    curve.live.push_back(highest);
    if (highest <= curve.peak) continue;
    curve.peak = highest;
    curve.at = static_cast<int>(i);
    curve.at_name = std::string(name(in.op)) + (in.name.empty() ? "" : " " + in.name);
    curve.by_part = base;
    curve.by_part.activations += held;
    curve.by_part.temporaries = highest - base.total() - held;
  }
  return curve;
}

}  // namespace tessera::plan
