#include "tessera/plan/simulate/predict.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::plan {

namespace {

/// Samples of a step; those of its micro-batches follow from their number.
int64_t samples_of(const Plan& plan, int dp_rank) {
  if (!plan.shares.empty()) return plan.shares[static_cast<size_t>(dp_rank)];
  const int64_t ranks = plan.mesh.dp_size();
  return (dp_rank + 1) * plan.global_batch / ranks - dp_rank * plan.global_batch / ranks;
}

}  // namespace

std::array<int64_t, 2> rank_kind(const Plan& plan, int rank) {
  return {plan.mesh.coordinate(rank, Axis::pp), samples_of(plan, plan.mesh.dp_rank(rank))};
}

namespace {

/// dp ranks with as many samples.
struct Alike {
  int64_t samples;
  int first, count;
};

/// In the order of their first.
std::vector<Alike> kinds_of(const Plan& plan) {
  const int ranks = plan.mesh.dp_size();
  std::vector<Alike> kinds;
  if (plan.shares.empty()) {  // found without asking each of many ranks, which a search would do hundreds of times
    const int more = static_cast<int>(plan.global_batch % ranks);
    kinds.push_back({samples_of(plan, 0), 0, ranks - more});
    if (more > 0) kinds.push_back({samples_of(plan, 0) + 1, static_cast<int>(div_up(ranks, more)) - 1, more});
    return kinds;
  }
  for (int d = 0; d < ranks; ++d) {
    const auto known = std::ranges::find(kinds, samples_of(plan, d), &Alike::samples);
    if (known == kinds.end())
      kinds.push_back({samples_of(plan, d), d, 1});
    else
      ++known->count;
  }
  return kinds;
}

}  // namespace

std::vector<RankGroup> rank_groups(const ModelSpec& model, const Plan& plan, CompiledFor compiled_for) {
  const std::vector<Alike> kinds = kinds_of(plan);
  const int inner = plan.mesh.world() / (plan.mesh[Axis::pp] * plan.mesh.dp_size());  // ranks that share samples
  std::vector<RankGroup> groups;
  for (int stage = 0; stage < plan.mesh[Axis::pp]; ++stage)
    for (const Alike& kind : kinds) {
      const int rank = (stage * plan.mesh.dp_size() + kind.first) * inner;
      groups.push_back({.rank = rank,
                        .ranks = kind.count * inner,
                        .schedule = compile_train(model, plan, rank, /*pending=*/true, compiled_for),
                        .spans = {}});
    }
  return groups;
}

namespace {

/// Names the communicator of an instruction's collectives for the simulation. Identical ranks of other groups are not
/// simulated, so purpose and axes name it; each pipeline stage has its own, and messages have one for each pair of
/// identical ranks.
std::string communicator_name(const Instruction& in, const Plan& plan, int rank) {
  const std::string& group = in.group;
  const size_t open = group.find('[');
  if (open == std::string::npos) return in.name;
  const std::string name = group.substr(0, open), axis = name.substr(name.find(':') + 1);
  const int stages = plan.mesh[Axis::pp], here = plan.mesh.coordinate(rank, Axis::pp);
  if (stages == 1) return name;
  if (in.op == Op::send || in.op == Op::recv) {
    const bool next = in.lane == Lane::send_next || in.lane == Lane::recv_next;
    const int alike = rank % (plan.mesh.world() / stages);
    return name + "@" + std::to_string(next ? here : (here + stages - 1) % stages) + "#" + std::to_string(alike);
  }
  return axis.starts_with(axis_name(Axis::pp)) ? name : name + "@" + std::to_string(here);
}

/// `alone`: no other ranks are simulated, so that nothing waits in a communicator and none is named.
RankTasks tasks_of(const Schedule& schedule, const CostModel& cost, int rank, bool alone) {
  RankTasks result;
  result.tasks.reserve(schedule.list.size());
  const Profile& profile = cost.machine().profile;
  const bool in_turn = profile.devices == 0 && !profile.starts.empty();
  int computed = -1;  // the last instruction on the compute lane
  for (const Instruction& in : schedule.list) {
    Task task;
    task.lane = static_cast<int>(in.lane);
    task.wait = in.wait;
    if (in.lane == Lane::compute)
      computed = static_cast<int>(result.tasks.size());
    else if (in_turn && computed >= 0)
      task.wait.push_back(computed);
    task.phases = cost.phases(in, rank);
    if (!alone && std::ranges::any_of(task.phases, &Phase::is_collective))
      task.communicator = communicator_name(in, cost.plan(), rank);
    task.across_stages = in.op == Op::send || in.op == Op::recv || in.group.text().find(":pp") != std::string::npos;
    result.tasks.push_back(std::move(task));
  }
  return result;
}

}  // namespace

RankTasks tasks_of(const Schedule& schedule, const CostModel& cost, int rank) {
  return tasks_of(schedule, cost, rank, /*alone=*/false);
}

namespace {

/// Model FLOPs of all micro-batches on one rank (one pipeline stage), the numerator of MFU.
double model_flops(const ModelSpec& model, const Plan& plan) {
  double flops = 0;
  for (const auto& unit : model.units) flops += unit.cost.forward_flops + unit.cost.backward_flops;
  return flops * static_cast<double>(plan.accumulation()) / plan.mesh[Axis::pp];
}

/// What a step without them does not hide. Where ranks are processes of a CPU, encoders take the cores that compute does.
double exposed(const Beside& beside, const StepSeconds& step, const Profile& profile) {
  if (profile.devices == 0) return beside.between + beside.device + beside.host;
  const double free = step.total - step.compute - step.optimizer;
  return beside.between + std::max({0.0, beside.device - free, beside.host - step.total});
}

}  // namespace

namespace {

/// Adds to `step` what `times` further micro-batches take, each as long as from the begin of the second one to that of the
/// third. What of it is no compute counts as exposed copies where there are any, else as communication.
void repeat_second(const std::vector<Instruction>& list, const std::vector<Span>& spans, int64_t times,
                   StepSeconds& step) {
  double begin[2] = {-1, -1}, compute = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const int micro = list[i].micro;
    if (list[i].lane != Lane::compute || (micro != 1 && micro != 2)) continue;
    if (begin[micro - 1] < 0) begin[micro - 1] = spans[i].begin;
    if (micro == 1) compute += spans[i].end - spans[i].begin;
  }
  check_internal(begin[0] >= 0 && begin[1] >= 0, "plan.predict", "fewer than three micro-batches to repeat one of");
  const auto n = static_cast<double>(times);
  const double period = begin[1] - begin[0], computed = std::min(compute, period);
  step.total += n * period, step.compute += n * computed;
  (step.exposed_copy > step.exposed_comm ? step.exposed_copy : step.exposed_comm) += n * (period - computed);
}

}  // namespace

Prediction predict(const ModelSpec& model, const Plan& plan, const Machine& machine, std::vector<RankGroup> groups,
                   int64_t repeated) {
  if (groups.empty()) groups = rank_groups(model, plan);
  const CostModel cost(model, plan, machine);
  std::vector<RankTasks> tasks;
  for (const RankGroup& group : groups) tasks.push_back(tasks_of(group.schedule, cost, group.rank, groups.size() == 1));
  SimulateOptions options;
  options.steal = machine.profile.steal, options.copy_steal = machine.profile.copy_steal;
  options.beside = machine.profile.beside, options.wake = machine.profile.wake;
  options.copy_beside = machine.profile.copy_beside, options.both_ways = machine.profile.both_ways;
  options.shared_processor = machine.profile.devices == 0;
  Timeline timeline = simulate(tasks, options);
  Prediction p;
  p.slowest = timeline.slowest;
  const RankTimeline& slowest = timeline.ranks[timeline.slowest];
  p.step = {timeline.seconds,           slowest.share(Share::compute),   slowest.share(Share::comm),
            slowest.share(Share::copy), slowest.share(Share::optimizer), slowest.share(Share::bubble)};
  if (repeated > 0)
    repeat_second(groups[static_cast<size_t>(p.slowest)].schedule.list, slowest.spans, repeated, p.step);
  p.step.encoders = exposed(machine.beside, p.step, machine.profile);
  p.step.total += p.step.encoders;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& busy = timeline.ranks[g].busy;
    groups[g].spans = std::move(timeline.ranks[g].spans);
    groups[g].busy_link = busy[static_cast<int>(Resource::link)];
    groups[g].busy_copy = busy[static_cast<int>(Resource::h2d)] + busy[static_cast<int>(Resource::d2h)] +
                          busy[static_cast<int>(Resource::disk)];
  }
  p.groups = std::move(groups);
  p.flops_per_second = p.step.total > 0 ? model_flops(model, plan) / p.step.total : 0;
  return p;
}

double forward_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine) {
  std::vector<RankGroup> groups = rank_groups(model, plan);
  for (RankGroup& group : groups) group.schedule = compile_forward(model, plan, group.rank, "evaluate", 1);
  Machine alone = machine;
  alone.beside = {};
  return predict(model, plan, alone, std::move(groups)).step.total;
}

}  // namespace tessera::plan
