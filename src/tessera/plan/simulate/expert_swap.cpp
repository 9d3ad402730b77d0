#include "tessera/plan/simulate/expert_swap.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/plan/compile/compile.h"

namespace tessera::plan {

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
      if (!states && unit.parameters == Tier::device)
        when.parameters[u] = move(shard_bytes(layout, plan.states.masters));
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
void add(DealForecast::Way& way, const ExpertShares& shares, int64_t micro_batch) {
  const StepUse use = step_use(shares, micro_batch);
  way.idle += use.idle(), way.dummies += use.dummy_share();
  for (const std::vector<int64_t>& of_expert : shares)
    if (const int64_t most = std::ranges::max(of_expert); most > 0) way.passes[most] += 1;
}

void divide(DealForecast::Way& way, double steps) {
  way.idle /= steps, way.dummies /= steps;
  for (auto& [samples, passes] : way.passes) passes /= steps;
}

}  // namespace

DealForecast deal_forecast(const std::vector<double>& frequencies, const std::vector<int64_t>& own,
                           int64_t micro_batch) {
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
    const Deal dealt = deal(chosen);
    add(forecast.undealt, chosen, micro_batch);
    add(forecast.dealt, dealt.shares, micro_batch);
    std::vector<int64_t> sent(own.size(), 0), received(own.size(), 0);
    for (const Deal::Move& move : dealt.moves) {
      sent[static_cast<size_t>(move.from)] += move.samples, received[static_cast<size_t>(move.to)] += move.samples;
      forecast.moved += static_cast<double>(move.samples);
    }
    forecast.busiest += static_cast<double>(std::max(std::ranges::max(sent), std::ranges::max(received)));
  }
  const auto count = static_cast<double>(steps);
  divide(forecast.dealt, count), divide(forecast.undealt, count);
  forecast.moved /= count, forecast.busiest /= count;
  forecast.worst_sent = most_sent(std::ranges::max(own), static_cast<int>(own.size()));
  return forecast;
}

namespace {

/// Bytes/s of a rank's messages in host memory: through memory that the ranks of a node share, and the node's network card.
double message_rate(const Profile& profile, const Mesh& mesh) {
  const int world = mesh.world();
  if (profile.devices > 0 && world > profile.devices) {
    const double rate = profile.nic.exchange > 0 ? profile.nic.exchange : profile.nic.reduce;
    return rate / profile.devices;
  }
  const double link = profile.link.exchange > 0 ? profile.link.exchange : profile.link.reduce;
  // A message is written there once and read once.
  return profile.host_bandwidth > 0 ? profile.host_bandwidth / (2 * world) : link;
}

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
    for (const auto& [samples, passes] : way.passes) seconds += passes * of(samples);
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

GateMean gate_mean(const ModelSpec& model, const Plan& plan, const Machine& machine,
                   const std::vector<double>& frequencies, const std::vector<int64_t>& own, int64_t sample_bytes) {
  GateMean mean;
  mean.sample_bytes = sample_bytes;
  mean.forecast = deal_forecast(frequencies, own, plan.micro_batch);
  PassSeconds seconds(model, plan, machine, std::max<int64_t>(1, std::ranges::max(own)));
  const double rate = message_rate(machine.profile, plan.mesh), bytes = static_cast<double>(sample_bytes);
  const auto taken = [&](double of) { return rate > 0 ? of / rate : 0; };
  mean.mean_bytes = mean.forecast.busiest * bytes, mean.mean_seconds = taken(mean.mean_bytes);
  mean.worst_bytes = mean.forecast.worst_sent * sample_bytes;
  mean.worst_seconds = taken(static_cast<double>(mean.worst_bytes));
  mean.undealt = seconds.of(mean.forecast.undealt);
  mean.dealt = seconds.of(mean.forecast.dealt) + mean.mean_seconds;
  return mean;
}

}  // namespace tessera::plan
