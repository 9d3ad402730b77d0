#include "tessera/plan/simulate/predict.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/compile/issue.h"

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

namespace {

/// Bytes/s, in one direction, between a rank's device and the placement of inactive experts.
double tier_rate(const Profile& profile, const Plan& plan, bool in) {
  const double ranks = profile.devices > 0 ? std::min(profile.devices, plan.mesh.world()) : plan.mesh.world();
  if (plan.idle == Tier::nvme) return (in ? profile.disk_read : profile.disk_write) / ranks;
  return profile.host_bandwidth > 0 ? std::min(profile.host_link, profile.host_bandwidth / ranks) : profile.host_link;
}

/// Seconds to load and then offload so many bytes.
double exchange_seconds(const Profile& profile, const Plan& plan, int64_t bytes) {
  double seconds = 0;
  for (const bool in : {true, false})
    if (const double rate = tier_rate(profile, plan, in); rate > 0) seconds += static_cast<double>(bytes) / rate;
  return seconds;
}

/// When each unit's parameters and states arrive, from the start of the step.
struct Arrivals {
  std::vector<double> parameters, states;
  int64_t bytes = 0;  // in one direction
  double last = 0;
};

Arrivals arrivals(const ModelSpec& model, const Plan& plan, const Profile& profile, int rank) {
  const size_t count = model.units.size();
  Arrivals when{std::vector<double>(count, 0), std::vector<double>(count, 0)};
  const StatesOf kinds = states_of(plan.states);
  const auto move = [&](int64_t bytes) {
    when.bytes += bytes;
    return when.last += exchange_seconds(profile, plan, bytes);
  };
  for (const bool states : {false, true})
    for (size_t u = 0; u < count; ++u) {
      if (!plan.owns(rank, static_cast<int>(u))) continue;
      const UnitLayout layout = plan.layout(model.units[u], static_cast<int>(u));
      const UnitPlan& unit = plan.units[u];
      if (!states && unit.parameters == Tier::device) when.parameters[u] = move(plan.inactive_bytes(layout));
      if (states && unit.states == Tier::device)
        when.states[u] = move(state_layout(model.units[u], layout, plan.held(layout, rank), kinds).bytes);
    }
  return when;
}

bool reads_parameters(Op op) { return op == Op::gather || op == Op::forward || op == Op::update; }

}  // namespace

ExpertSwap expert_swap(const ModelSpec& model, const Plan& plan, const Machine& machine, const Prediction& predicted) {
  ExpertSwap most;
  if (plan.experts <= 1 || plan.idle == Tier::device) return most;
  for (const RankGroup& group : predicted.groups) {
    const Arrivals when = arrivals(model, plan, machine.profile, group.rank);
    ExpertSwap here{2 * when.bytes, when.last, 0};
    // A wait delays everything after it, including later uses, so the step is delayed by the longest wait.
    for (size_t i = 0; i < group.schedule.list.size() && i < group.spans.size(); ++i) {
      const Instruction& in = group.schedule.list[i];
      if (in.unit < 0 || !reads_parameters(in.op)) continue;
      const auto u = static_cast<size_t>(in.unit);
      const double needed = in.op == Op::update ? std::max(when.parameters[u], when.states[u]) : when.parameters[u];
      here.waited = std::max(here.waited, needed - group.spans[i].begin);
    }
    most.bytes = std::max(most.bytes, here.bytes);
    most.seconds = std::max(most.seconds, here.seconds);
    most.waited = std::max(most.waited, here.waited);
  }
  return most;
}

GateSeconds gate_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine, bool soft) {
  const Prediction alone = predict(model, plan, machine);
  GateSeconds gate;
  if (soft) {
    const double forward = forward_seconds(model, plan, machine);
    const double change = expert_swap(model, plan, machine, alone).waited;
    gate.experts = gate.disagreeing_experts = plan.experts;
    gate.alike = gate.different = gate.disagreeing =
        plan.experts * (alone.step.total + static_cast<double>(plan.accumulation()) * forward + 2 * change);
    return gate;
  }
  gate.alike = alone.step.total;
  // Every rank's samples choose different experts: each expert trains a share of them on every rank, in a step of its
  // own.
  const int64_t ranks = plan.mesh.dp_size(), own = (plan.global_batch + ranks - 1) / ranks;
  gate.experts = static_cast<int>(std::min<int64_t>(plan.experts, plan.global_batch));
  Plan part = plan;
  part.shares.clear();
  part.global_batch = ranks * ((own + gate.experts - 1) / gate.experts);
  const Prediction each = predict(model, part, machine);
  gate.different = gate.experts * (each.step.total + expert_swap(model, part, machine, each).waited);
  gate.disagreeing_experts = static_cast<int>(std::min({int64_t{plan.experts}, ranks, plan.global_batch}));
  const double swaps = gate.disagreeing_experts > 1 ? expert_swap(model, plan, machine, alone).waited : 0;
  gate.disagreeing = std::max(gate.different, gate.disagreeing_experts * (alone.step.total + swaps));
  return gate;
}

namespace {

/// Adds what one step of `shares` does to the sums of a way.
void add(DealForecast::Way& way, const ExpertShares& shares, const std::vector<int64_t>& micro_batches,
         const ExpertPairs& pairs = {}) {
  const StepUse use = step_use(shares, micro_batches, pairs);
  way.idle += use.idle(), way.dummies += use.dummy_share();
  way.passes.resize(shares.size());
  for (size_t e = 0; e < shares.size(); ++e)
    if (const int64_t most = std::ranges::max(shares[e]); most > 0) way.passes[e][most] += 1;
}

void divide(DealForecast::Way& way, double steps) {
  way.idle /= steps, way.dummies /= steps;
  for (auto& of_expert : way.passes)
    for (auto& [samples, passes] : of_expert) passes /= steps;
}

}  // namespace

DealForecast deal_forecast(const std::vector<double>& frequencies, const std::vector<int64_t>& own,
                           const std::vector<int64_t>& micro_batches, bool together) {
  const double sum = std::accumulate(frequencies.begin(), frequencies.end(), 0.0);
  check_internal(sum > 0 && !own.empty(), "plan.gate", "a forecast of no expert or no rank");
  // Enough that the mean is known to a hundredth of its spread, and few enough for the largest batches.
  constexpr int64_t kSteps = 4000, kLeastSteps = 200, kDraws = 2'000'000;
  const int64_t work = std::max(std::accumulate(own.begin(), own.end(), int64_t{0}),
                                std::ssize(own) * std::ssize(frequencies));  // of a step
  const int64_t steps = std::clamp(kDraws / std::max<int64_t>(1, work), kLeastSteps, kSteps);
  DealForecast forecast;
  for (int64_t step = 0; step < steps; ++step) {
    const RandomKey key(0, Purpose::expert, static_cast<uint64_t>(step));
    ExpertShares chosen(frequencies.size(), std::vector<int64_t>(own.size(), 0));
    uint64_t sample = 0;
    for (size_t r = 0; r < own.size(); ++r)
      for (int64_t s = 0; s < own[r]; ++s) {
        double left = key.uniform(sample++) * sum;
        size_t e = 0;
        while (e + 1 < frequencies.size() && (left -= frequencies[e]) >= 0) ++e;
        ++chosen[e][r];
      }
    const ExpertPairs pairs = together ? expert_pairs(chosen, micro_batches) : ExpertPairs{};
    const Deal dealt = deal(chosen, pairs);
    add(forecast.undealt, chosen, micro_batches);
    add(forecast.dealt, dealt.shares, micro_batches, pairs);
    forecast.pairs += static_cast<double>(pairs.size());
    std::vector<int64_t> sent(own.size(), 0), received(own.size(), 0);
    for (const Deal::Move& move : dealt.moves) {
      sent[static_cast<size_t>(move.from)] += move.samples, received[static_cast<size_t>(move.to)] += move.samples;
      forecast.moved += static_cast<double>(move.samples);
    }
    forecast.busiest += static_cast<double>(std::max(std::ranges::max(sent), std::ranges::max(received)));
  }
  const auto count = static_cast<double>(steps);
  divide(forecast.dealt, count), divide(forecast.undealt, count);
  forecast.moved /= count, forecast.busiest /= count, forecast.pairs /= count;
  forecast.worst_sent = most_sent(std::ranges::max(own), static_cast<int>(own.size()));
  return forecast;
}

namespace {

/// The time of dealt samples, which travel in host memory: through memory that the ranks of a node share, and between nodes by
/// Gloo, which is TCP over what network the hosts have beside the cards of the devices. No profile knows its rate, so that of
/// a plain one is taken.
class MessageSeconds {
 public:
  MessageSeconds(const Profile& profile, const Mesh& mesh) {
    const int world = mesh.world(), node = profile.devices > 0 ? std::min(profile.devices, world) : world;
    const std::vector<int> peers = mesh.group(0, {Axis::dp_replicate, Axis::dp_shard});
    const auto beyond = std::ranges::count_if(peers, [&](int peer) { return peer >= node; });
    if (peers.size() > 1) far_ = static_cast<double>(beyond) / static_cast<double>(peers.size() - 1);
    const double link = profile.link.exchange > 0 ? profile.link.exchange : profile.link.reduce;
    // A message is written there once and read once.
    near_rate_ = profile.host_bandwidth > 0 ? profile.host_bandwidth / (2 * node) : link;
    const double cards = profile.nic.exchange > 0 ? profile.nic.exchange : profile.nic.reduce;
    far_rate_ = std::min(kStream, (cards > 0 ? std::min(cards, kHosts) : kHosts) / node);
  }
  /// Of a rank whose samples go to any of the others alike.
  double of(double bytes) const { return seconds(bytes * (1 - far_), near_rate_) + seconds(bytes * far_, far_rate_); }
  /// Where all of them go the slower way.
  double worst(double bytes) const {
    const double near = seconds(bytes, near_rate_);
    return far_ > 0 ? std::max(near, seconds(bytes, far_rate_)) : near;
  }

 private:
  static double seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }
  static constexpr double kStream = 1e9;      // bytes/s of a connection, which one thread of a rank serves
  static constexpr double kHosts = 25e9 / 8;  // bytes/s of a host
  double far_ = 0;                            // share of the other ranks that are on other nodes
  double near_rate_ = 0, far_rate_ = 0;
};

/// Seconds of passes of so many samples on the fullest rank, each predicted once. Of very many sizes a few are.
class PassSeconds {
 public:
  PassSeconds(const ModelSpec& model, const Plan& plan, const Machine& machine, int64_t most)
      : model_(model), plan_(plan), machine_(machine), stride_(div_up(most, kSizes)) {
    plan_.shares.clear();
  }
  double of(int64_t samples) {
    const int64_t size = round_up(samples, stride_);
    const auto [found, added] = known_.try_emplace(size, 0.0);
    if (added) {
      plan_.global_batch = size * plan_.mesh.dp_size();
      const Prediction each = predict(model_, plan_, machine_);
      found->second = each.step.total + expert_swap(model_, plan_, machine_, each).waited;
    }
    return found->second * static_cast<double>(samples) / static_cast<double>(size);
  }
  double of(const DealForecast::Way& way) {
    double seconds = 0;
    for (const auto& of_expert : way.passes)
      for (const auto& [samples, passes] : of_expert) seconds += passes * of(samples);
    return seconds;
  }

 private:
  static constexpr int64_t kSizes = 16;
  const ModelSpec& model_;
  Plan plan_;
  const Machine& machine_;
  const int64_t stride_;
  std::map<int64_t, double> known_;
};

}  // namespace

std::vector<double> pass_seconds(const ModelSpec& model, const Plan& plan, const Machine& machine, int64_t most) {
  PassSeconds seconds(model, plan, machine, most);
  std::vector<double> all;
  for (int64_t samples = 1; samples <= most; ++samples) all.push_back(seconds.of(samples));
  return all;
}

double seconds_of(const PassPlan& plan, const std::map<int64_t, double>& passes) {
  double seconds = 0;
  for (const auto& [samples, count] : passes) seconds += count * plan.seconds.at(static_cast<size_t>(samples - 1));
  return seconds;
}

std::vector<size_t> plans_by_use(const std::vector<PassPlan>& plans, const DealForecast::Way& use) {
  constexpr double kWorthIt = 0.99;  // less is within what predictions of two plans are off by
  std::vector<size_t> chosen;
  for (const std::map<int64_t, double>& passes : use.passes) {
    const std::map<int64_t, double> ran = passes.empty() ? std::map<int64_t, double>{{1, 1.0}} : passes;
    size_t best = 0;
    double least = kWorthIt * seconds_of(plans.at(0), ran);
    for (size_t p = 1; p < plans.size(); ++p)
      if (const double seconds = seconds_of(plans[p], ran); seconds < least) best = p, least = seconds;
    chosen.push_back(best);
  }
  return chosen;
}

GateMean gate_mean(const ModelSpec& model, const Plan& plan, const Machine& machine,
                   const std::vector<double>& frequencies, const std::vector<int64_t>& own, int64_t sample_bytes) {
  GateMean mean;
  mean.sample_bytes = sample_bytes;
  mean.forecast = deal_forecast(frequencies, own, {plan.micro_batch}, plan.together > 1);
  PassSeconds seconds(model, plan, machine, std::max<int64_t>(1, std::ranges::max(own)));
  const MessageSeconds taken(machine.profile, plan.mesh);
  mean.mean_bytes = mean.forecast.busiest * static_cast<double>(sample_bytes);
  mean.mean_seconds = taken.of(mean.mean_bytes);
  mean.worst_bytes = mean.forecast.worst_sent * sample_bytes;
  mean.worst_seconds = taken.worst(static_cast<double>(mean.worst_bytes));
  mean.undealt = seconds.of(mean.forecast.undealt);
  mean.dealt = seconds.of(mean.forecast.dealt) + mean.mean_seconds;
  if (mean.forecast.pairs > 0) mean.dealt -= mean.forecast.pairs * saved_side_by_side(model, plan, machine);
  return mean;
}

double saved_side_by_side(const ModelSpec& model, const Plan& plan, const Machine& machine) {
  const int ranks = plan.mesh.dp_size(), half = ranks / 2, inner = plan.mesh.world() / ranks;
  if (half == 0) return 0;
  double apart = 0;
  std::vector<RankGroup> both[2];  // of each pass: the ranks with a sample of the first, and the others
  for (const bool first : {true, false}) {
    Plan pass = plan;
    pass.shares.assign(static_cast<size_t>(ranks), 0);
    for (int r = 0; r < ranks; ++r) pass.shares[static_cast<size_t>(r)] = (r < half) == first;
    std::vector<RankGroup>& groups = both[first ? 0 : 1];
    for (const auto& [rank, count] : {std::pair(0, half), {half, ranks - half}})
      groups.push_back({.rank = rank * inner,
                        .ranks = count * inner,
                        .schedule = compile_train(model, pass, rank * inner),
                        .spans = {}});
    apart += predict(model, pass, machine, groups).step.total;
  }
  Plan each = plan;  // instructions of ranks without a sample compute nothing
  each.shares.assign(static_cast<size_t>(ranks), 1);
  for (size_t g = 0; g < both[0].size(); ++g)
    both[0][g].schedule = joined_side_by_side({&both[0][g].schedule, &both[1][g].schedule}, plan.prefetch);
  return std::max(0.0, apart - predict(model, each, machine, std::move(both[0])).step.total);
}

}  // namespace tessera::plan
