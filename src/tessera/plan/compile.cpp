// Compiles a plan into the instructions of one rank. The order is built as *visits*: each visit is one use of one
// unit's parameters, and a gather is issued `prefetch` visits before the visit that needs it.
#include <deque>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/plan/arena.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

namespace {

constexpr int64_t kElement = 4;  // gathered parameters and gradients are fp32

struct Visit {
  bool forward;
  int unit;
  int micro;
};

struct GroupName {
  std::string axis;  // "dp_shard", empty when the group has one member
  std::string name;  // "gather:dp_shard[0,1]"
};

GroupName group_name(const Mesh& mesh, int rank, const std::string& purpose, const std::vector<Axis>& axes) {
  GroupName group;
  for (Axis a : axes)
    if (mesh[a] > 1) group.axis += (group.axis.empty() ? "" : "+") + std::string(axis_name(a));
  if (group.axis.empty()) return group;
  std::string ranks;
  for (int r : mesh.group(rank, axes)) ranks += (ranks.empty() ? "" : ",") + std::to_string(r);
  group.name = purpose + ":" + group.axis + "[" + ranks + "]";
  return group;
}

class Compiler {
 public:
  Compiler(const ModelSpec& model, const Plan& plan, int rank, std::string phase)
      : model_(model),
        plan_(plan),
        dp_rank_(plan.mesh.dp_rank(rank)),
        gather_(group_name(plan.mesh, rank, "gather", kShardAxes)),
        reduce_(group_name(plan.mesh, rank, "reduce", kShardAxes)),
        outer_(group_name(plan.mesh, rank, "reduce_outer", {Axis::dp_replicate})),
        world_(group_name(plan.mesh, rank, "control", {kAllAxes.begin(), kAllAxes.end()})),
        resident_(model.units.size()) {
    check_internal(plan.units.size() == model.units.size(), "plan.compile",
                   "the plan has " + std::to_string(plan.units.size()) + " units, the model " +
                       std::to_string(model.units.size()));
    schedule_.phase = std::move(phase);
    for (const auto& unit : model.units) layouts_.push_back(flat_layout(unit, plan.mesh.shard_size()));
  }

  Schedule train() {
    const int units = static_cast<int>(model_.units.size());
    schedule_.micros = static_cast<int>(plan_.accumulation());
    std::vector<Visit> visits;
    for (int m = 0; m < schedule_.micros; ++m) {
      for (int u = 0; u < units; ++u) visits.push_back({true, u, m});
      for (int u = units - 1; u >= 0; --u) visits.push_back({false, u, m});
    }
    walk(visits);
    std::vector<int> reduced = last_reduce_;
    if (!outer_.axis.empty()) {
      reduced.clear();
      for (int u = units - 1; u >= 0; --u) {
        Instruction in = make(Op::reduce_outer, Lane::reduce, u, -1);
        in.bytes = layouts_[u].shard * kElement;
        in.group = outer_.name;
        in.comm = {{outer_.axis, "all_reduce", in.bytes}};
        in.wait = last_reduce_;
        reduced = {add(in)};
      }
    }
    Instruction norm = make(Op::norm, Lane::compute, -1, -1);
    norm.wait = reduced;
    norm.group = world_.name;
    if (!world_.axis.empty()) norm.comm = {{world_.axis, "all_gather", kControlBytes}};
    add(norm);
    for (int u = 0; u < units; ++u) {
      Instruction in = make(Op::update, Lane::compute, u, -1);
      in.bytes = layouts_[u].shard * kElement;
      add(in);
    }
    return done();
  }

  Schedule forward_only(int micros) {
    schedule_.micros = micros;
    std::vector<Visit> visits;
    for (int m = 0; m < micros; ++m)
      for (int u = 0; u < static_cast<int>(model_.units.size()); ++u) visits.push_back({true, u, m});
    forward_only_ = true;
    walk(visits);
    return done();
  }

  Schedule checkpoint() {
    Instruction in = make(Op::flush, Lane::disk, -1, -1);
    for (const auto& layout : layouts_) in.bytes += 3 * layout.shard * kElement;  // parameter, exp_avg, exp_avg_sq
    in.group = world_.name;
    if (!world_.axis.empty()) in.comm = {{world_.axis, "barrier", 0}, {world_.axis, "barrier", 0}};
    add(in);
    return done();
  }

 private:
  Instruction make(Op op, Lane lane, int unit, int micro) const {
    Instruction in;
    in.op = op, in.lane = lane, in.unit = unit, in.micro = micro;
    if (unit >= 0) in.name = model_.units[unit].name;
    return in;
  }

  int add(Instruction in) {
    std::sort(in.wait.begin(), in.wait.end());
    in.wait.erase(std::unique(in.wait.begin(), in.wait.end()), in.wait.end());
    schedule_.list.push_back(std::move(in));
    return static_cast<int>(schedule_.list.size()) - 1;
  }

  /// Visit of the same unit after `v`, or -1; `stays` says whether its parameters stay gathered until then.
  int next_visit(const std::vector<Visit>& visits, int v) const {
    for (size_t w = v + 1; w < visits.size(); ++w)
      if (visits[w].unit == visits[v].unit) return static_cast<int>(w);
    return -1;
  }
  bool stays(const std::vector<Visit>& visits, int v) const {
    const int next = next_visit(visits, v);
    if (next < 0) return false;
    // A slot that would be filled again at once is kept: releasing it would free nothing.
    return plan_.units[visits[v].unit].strategy == Strategy::shard_grad_op || next - v <= plan_.prefetch + 1;
  }

  void walk(const std::vector<Visit>& visits) {
    const int count = static_cast<int>(visits.size());
    std::vector<bool> needs_gather(count, true);
    for (int v = 0; v < count; ++v)
      if (stays(visits, v)) needs_gather[next_visit(visits, v)] = false;
    int issued = 0;
    for (int v = 0; v < count; ++v) {
      for (; issued < count && issued <= v + plan_.prefetch; ++issued)
        if (needs_gather[issued]) gather(visits[issued].unit, visits[issued].micro);
      const std::optional<int> backward = run(visits[v]);
      if (!stays(visits, v)) release(visits[v].unit, visits[v].micro);
      if (backward) reduce(visits[v], *backward);  // after the release: its receive buffer may take the slot's place
    }
    land(0);
    check_internal(arena_.empty(), "plan.compile", "a slot is still taken at the end of the schedule");
  }

  void gather(int unit, int micro) {
    Instruction in = make(Op::gather, Lane::gather, unit, micro);
    in.bytes = layouts_[unit].total * kElement;
    if (!gather_.axis.empty()) {  // a group of one reads its shard in place
      in.group = gather_.name;
      in.slot = arena_.take(in.bytes, in.wait);
      in.comm = {{gather_.axis, "all_gather", layouts_[unit].shard * kElement * (layouts_[unit].shards - 1)}};
    }
    resident_[unit] = {add(in), in.slot};
  }

  void release(int unit, int micro) {
    Instruction in = make(Op::release, Lane::compute, unit, micro);
    in.slot = resident_[unit].slot;
    in.wait = {resident_[unit].gather};
    const int at = add(in);
    if (in.slot >= 0) arena_.give(in.slot, at);
  }

  Instruction use(Op op, const Visit& visit) const {
    Instruction in = make(op, Lane::compute, visit.unit, visit.micro);
    in.slot = resident_[visit.unit].slot;
    in.wait = {resident_[visit.unit].gather};
    return in;
  }

  /// Emits what a visit computes. Gives the instruction that fills the gradient slot, when there is one to reduce.
  std::optional<int> run(const Visit& visit) {
    const bool idle = !forward_only_ && plan_.slice(dp_rank_, visit.micro).count == 0;
    const bool last = visit.unit + 1 == static_cast<int>(model_.units.size());
    if (visit.forward) {
      if (idle) return std::nullopt;
      add(use(Op::forward, visit));
      if (last) add(make(forward_only_ ? Op::finish : Op::loss, Lane::compute, -1, visit.micro));
      return std::nullopt;
    }
    if (!idle && plan_.units[visit.unit].activations == Policy::recompute) add(use(Op::recompute, visit));
    Instruction in = idle ? make(Op::idle, Lane::compute, visit.unit, visit.micro) : use(Op::backward, visit);
    const bool sharded = !reduce_.axis.empty();
    if (sharded) in.grad = take_gradient(layouts_[visit.unit].total * kElement, in.wait);
    const int at = add(in);
    if (sharded) return at;
    last_reduce_ = {at};  // gradients are written where they stay
    return std::nullopt;
  }

  void reduce(const Visit& visit, int backward) {
    const FlatLayout& layout = layouts_[visit.unit];
    Instruction in = make(Op::reduce, Lane::reduce, visit.unit, visit.micro);
    in.bytes = layout.total * kElement;
    in.grad = schedule_.list[backward].grad;
    in.wait = {backward};
    in.scratch = arena_.take(in.bytes, in.wait);
    in.group = reduce_.name;
    in.comm = {{reduce_.axis, "reduce_scatter", layout.shard * kElement * (layout.shards - 1)}};
    const int64_t grad = in.grad, scratch = in.scratch;
    const int at = add(std::move(in));
    flights_.push_back({grad, at});
    flights_.push_back({scratch, at});
    last_reduce_ = {at};
    if (plan_.prefetch == 0) land(0);
  }

  /// Gives back the oldest gradient slots and receive buffers until at most `bound` are in flight.
  void land(size_t bound) {
    while (flights_.size() > bound) {
      arena_.give(flights_.front().at, flights_.front().reduce);
      flights_.pop_front();
    }
  }

  /// Gradient slots in flight are bounded, so that a reduction overlaps the next backward and no more: the oldest is
  /// given back (and waited for) when a new one is needed. Without prefetch nothing overlaps and all is given back at
  /// once.
  int64_t take_gradient(int64_t bytes, std::vector<int>& waits) {
    land(2);  // one gradient slot with its receive buffer
    return arena_.take(bytes, waits);
  }

  Schedule done() {
    schedule_.arena = arena_.size();
    return std::move(schedule_);
  }

  struct Resident {
    int gather = -1;
    int64_t slot = -1;
  };
  struct Flight {
    int64_t at;
    int reduce;
  };

  const ModelSpec& model_;
  const Plan& plan_;
  const int dp_rank_;
  const GroupName gather_, reduce_, outer_, world_;
  std::vector<FlatLayout> layouts_;
  std::vector<Resident> resident_;
  std::deque<Flight> flights_;  // gradient slots and scratches not yet given back, oldest first
  std::vector<int> last_reduce_;
  Arena arena_;
  Schedule schedule_;
  bool forward_only_ = false;
};

}  // namespace

Schedule compile_train(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "train").train();
}

Schedule compile_forward(const ModelSpec& model, const Plan& plan, int rank, std::string phase, int micros) {
  return Compiler(model, plan, rank, std::move(phase)).forward_only(micros);
}

Schedule compile_checkpoint(const ModelSpec& model, const Plan& plan, int rank) {
  return Compiler(model, plan, rank, "checkpoint").checkpoint();
}

void each_schedule(const RunShape& run, const RunSchedules& schedules,
                   const std::function<void(int64_t, const Schedule&)>& emit) {
  for (int64_t step = run.first_step; step <= run.steps; ++step) {
    emit(step, schedules.train);
    if (run.sample_every > 0 && (step % run.sample_every == 0 || step == run.steps))
      for (int64_t pass = 0; pass < int64_t{run.sample_prompts} * run.sample_steps; ++pass)
        emit(step, schedules.sample);
    if ((run.checkpoint_every > 0 && step % run.checkpoint_every == 0) || step == run.steps)
      emit(step, schedules.checkpoint);
  }
}

}  // namespace tessera::plan
