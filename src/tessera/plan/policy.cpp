#include "tessera/plan/policy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "tessera/base/check.h"
#include "tessera/base/names.h"

namespace tessera::plan {

namespace {

constexpr std::array<std::string_view, 3> kTiers = {"device", "host", "nvme"};

constexpr Policy in_form(DType form, Tier tier) { return {Graph::rebuild, form, tier}; }

}  // namespace

std::string_view name(Tier tier) { return kTiers[static_cast<size_t>(tier)]; }
Tier tier_of(std::string_view text, std::string_view where) { return named<Tier>(kTiers, text, where); }

const std::vector<NamedPolicy>& named_policies() {
  static const std::vector<NamedPolicy> policies = {{"keep", Policy::keep},
                                                    {"rebuild", Policy::rebuild},
                                                    {"recompute", Policy::recompute},
                                                    {"offload", Policy::offload},
                                                    {"bf16", in_form(DType::bf16, Tier::device)},
                                                    {"fp16", in_form(DType::f16, Tier::device)},
                                                    {"int8", in_form(DType::i8, Tier::device)},
                                                    {"fp8", in_form(DType::f8_e4m3, Tier::device)},
                                                    {"offload_bf16", in_form(DType::bf16, Tier::host)},
                                                    {"offload_fp16", in_form(DType::f16, Tier::host)},
                                                    {"offload_int8", in_form(DType::i8, Tier::host)},
                                                    {"offload_fp8", in_form(DType::f8_e4m3, Tier::host)}};
  return policies;
}

std::string_view name(const Policy& policy) {
  if (policy == kRecomputeOffload.policy) return kRecomputeOffload.name;
  const auto& policies = named_policies();
  const auto found = std::ranges::find(policies, policy, &NamedPolicy::policy);
  check_internal(found != policies.end(), "plan.policy", "a policy without a name");
  return found->name;
}

Policy policy_of(std::string_view text, std::string_view where) {
  std::vector<std::string> known;
  for (const NamedPolicy& named : named_policies()) {
    if (named.name == text) return named.policy;
    known.emplace_back(named.name);
  }
  unknown_name(where, text, known);
}

namespace {

constexpr std::array<std::string_view, 4> kSchedules = {"gpipe", "1f1b", "interleaved", "zero_bubble"};

using Kind = PipelineAct::Kind;

std::vector<PipelineAct> gpipe(int micros) {
  std::vector<PipelineAct> acts;
  for (Kind kind : {Kind::forward, Kind::backward})
    for (int m = 0; m < micros; ++m) acts.push_back({kind, 0, m});
  return acts;
}

/// Runs `warm` forwards first, then alternates one forward with one backward, then runs the remaining backwards.
std::vector<PipelineAct> alternate(const std::vector<PipelineAct>& forwards, const std::vector<PipelineAct>& backwards,
                                   size_t warm) {
  std::vector<PipelineAct> acts(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warm));
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (warm + i < forwards.size()) acts.push_back(forwards[warm + i]);
    acts.push_back(backwards[i]);
  }
  return acts;
}

std::vector<PipelineAct> one_f_one_b(int ranks, int rank, int micros) {
  const std::vector<PipelineAct> all = gpipe(micros);
  const auto middle = all.begin() + micros;
  return alternate({all.begin(), middle}, {middle, all.end()}, std::min(micros, ranks - rank - 1));
}

/// Micro-batches go through the chunks in groups of `ranks` (Narayanan et al. 2021). An incomplete last group is
/// ordered like a full one with its missing micro-batches left out, so the order stays free of deadlock.
std::vector<PipelineAct> interleaved(int ranks, int rank, int chunks, int micros) {
  std::vector<PipelineAct> forwards, backwards;
  const int full = static_cast<int>(round_up(micros, ranks));
  for (int group = 0; group < full; group += ranks)
    for (int c = 0; c < chunks; ++c)
      for (int m = group; m < group + ranks; ++m) {
        forwards.push_back({Kind::forward, c, m});
        backwards.push_back({Kind::backward, chunks - 1 - c, m});
      }
  const int warm = (ranks - rank - 1) * 2 + (chunks - 1) * ranks;
  std::vector<PipelineAct> acts = alternate(forwards, backwards, static_cast<size_t>(std::min(warm, chunks * full)));
  std::erase_if(acts, [&](const PipelineAct& act) { return act.micro >= micros; });
  return acts;
}

/// 1F1B whose backwards defer weight gradients. Rank r runs them r backwards later, in its pipeline bubbles, so it
/// holds at most as many activations as the first rank of 1F1B.
std::vector<PipelineAct> zero_bubble(int ranks, int rank, int micros) {
  std::vector<PipelineAct> acts;
  int done = 0;  // weight gradients
  for (const PipelineAct& act : one_f_one_b(ranks, rank, micros)) {
    acts.push_back(act);
    if (act.kind == Kind::backward && act.micro >= rank) acts.push_back({Kind::weight_grad, 0, done++});
  }
  while (done < micros) acts.push_back({Kind::weight_grad, 0, done++});
  return acts;
}

}  // namespace

std::string_view name(PipelineSchedule schedule) { return kSchedules[static_cast<size_t>(schedule)]; }

PipelineSchedule pipeline_schedule_of(std::string_view text, std::string_view where) {
  return named<PipelineSchedule>(kSchedules, text, where);
}

std::vector<PipelineAct> pipeline_acts(PipelineSchedule schedule, int ranks, int rank, int chunks, int micros) {
  check_internal(chunks == 1 || schedule == PipelineSchedule::interleaved, "plan.pipeline",
                 "several chunks a rank need the interleaved schedule");
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return gpipe(micros);
    case PipelineSchedule::one_f_one_b:
      return one_f_one_b(ranks, rank, micros);
    case PipelineSchedule::interleaved:
      return interleaved(ranks, rank, chunks, micros);
    case PipelineSchedule::zero_bubble:
      return zero_bubble(ranks, rank, micros);
  }
  throw InternalError("plan.pipeline", "unknown schedule");
}

std::vector<int> balanced_stages(const std::vector<double>& unit_cost, int stages) {
  const int units = static_cast<int>(unit_cost.size());
  if (stages > units)
    throw UserError(
        Exit::usage, "mesh.pp",
        std::to_string(stages) + " pipeline stages for " + std::to_string(units) + " units; each stage needs one",
        "use mesh.pp x plan.chunks of at most " + std::to_string(units));
  std::vector<double> sum(units + 1, 0);
  for (int u = 0; u < units; ++u) sum[u + 1] = sum[u] + unit_cost[u];
  // best[s][e]: units [0, e) in s stages; minimises the most expensive stage, then the sum of squares under that bound.
  const auto cut = [&](auto better) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> best(stages + 1, std::vector<double>(units + 1, kNever));
    std::vector<std::vector<int>> begin(stages + 1, std::vector<int>(units + 1, 0));
    best[0][0] = 0;
    for (int s = 1; s <= stages; ++s)
      for (int e = s; e <= units; ++e)
        for (int b = s - 1; b < e; ++b)
          if (const double value = better(best[s - 1][b], sum[e] - sum[b]); value < best[s][e])
            best[s][e] = value, begin[s][e] = b;
    std::vector<int> first(stages);
    for (int s = stages, e = units; s > 0; --s) first[s - 1] = e = begin[s][e];
    return std::pair(best[stages][units], first);
  };
  const double dearest = cut([](double so_far, double stage) { return std::max(so_far, stage); }).first;
  return cut([&](double so_far, double stage) {
           return stage > dearest * (1 + 1e-12) ? std::numeric_limits<double>::infinity() : so_far + stage * stage;
         })
      .second;
}

}  // namespace tessera::plan
