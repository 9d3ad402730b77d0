#include "tessera/planning/rank_share.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/units.h"
#include "tessera/diffusion/training_sample.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/models/common/adapted.h"
#include "tessera/plan/simulate/libraries.h"
#include "tessera/plan/simulate/predict.h"

namespace tessera::planning {

namespace {

/// Bytes of the predictions that a soft gate keeps during a step: `samples` on a rank, in micro-batches of `micro`.
int64_t mixed_bytes(int64_t samples, int64_t micro, int64_t prediction_bytes) {
  constexpr int64_t kBlock = 64;  // allocation granularity of a tensor
  return (samples + micro) * round_up(prediction_bytes, kBlock);
}

int ranks_of_node(const plan::Profile& profile, int world) {
  return profile.devices > 0 ? std::min(profile.devices, world) : world;
}

/// Each rank's share of the host memory that a node may use for offload.
int64_t host_share(const recipe::Recipe& recipe, const plan::Profile& profile, int world) {
  int64_t bytes = recipe.plan.host_budget;
  if (bytes < 0) bytes = profile.devices > 0 ? profile.host_memory / 10 * 9 : 0;
  return bytes / ranks_of_node(profile, world);
}

/// Floats of the largest clip's pixels, from which y or a noisy clip is encoded; a clip's own pixels are bytes.
int64_t picture_bytes(const recipe::Recipe& recipe, const net::Denoiser& model) {
  int64_t most = 0;
  if (!model.conditions().takes_images() && !families::any_noisy(recipe.diffusion.mask_types)) return most;
  for (const data::Bucket& b : recipe.data.clips.buckets) most = std::max(most, b.frames * b.height * b.width);
  return most * 3 * static_cast<int64_t>(sizeof(float));
}

/// At most: sample::SamplerWeights keeps of trained weights what a LoRA touches, as fp32, and frozen ones as they are
/// stored. Each rank keeps its shards, of all experts.
int64_t kept_weights(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh) {
  if (recipe.sample.every == 0 || recipe.sample.loras.empty()) return 0;
  int64_t bytes = 0;
  for (const auto& unit : job.model->units())
    for (const plan::ParamSpec& param : unit->spec().params)
      if (!models::is_adapter_parameter(param.name))
        bytes += plan::stored_bytes(param.trainable ? DType::f32 : param.stored, param.numel());
  return div_up(bytes * static_cast<int64_t>(job.experts.size()), mesh.world() / mesh[Axis::dp_replicate]);
}

}  // namespace

int64_t rank_budget(const plan::Profile& profile, const Mesh& mesh, const UnitGroups& sent_by) {
  if (profile.device.memory > 0 && profile.devices > 0) {
    const plan::Connected run = profile.target.empty() ? plan::Connected(mesh) : plan::Connected(mesh, sent_by(mesh));
    return std::max<int64_t>(1, plan::default_budget(profile, run));  // 0 would be no limit
  }
  const int64_t total = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return total / 10 * 9 / mesh.world();
}

RankShare rank_share(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                     const plan::Profile& profile, const EncoderBytes& encoders, const UnitGroups& sent_by) {
  RankShare share;
  share.budget = recipe.plan.budget > 0 ? recipe.plan.budget : rank_budget(profile, mesh, sent_by);
  share.host_budget = host_share(recipe, profile, mesh.world());
  share.local_world = ranks_of_node(profile, mesh.world());
  if (job.local_world > 0) share.local_world = std::min(share.local_world, job.local_world);
  const int64_t own = div_up(shapes.batch, mesh.dp_size());
  share.micro_batch = recipe.train.micro_batch > 0 ? std::min(recipe.train.micro_batch, own) : own;
  if (recipe.data.online())  // every step reads clips
    (encoders.place == recipe::Encoders::host ? share.host_encoders : share.resident) +=
        encoders.online(picture_bytes(recipe, *job.model));
  if (job.experts.gated && !recipe.experts.hard)
    share.resident += mixed_bytes(own, share.micro_batch, 4 * c10::multiply_integers(shapes.largest));
  share.kept_weights = kept_weights(recipe, job, mesh);
  share.encoding = encoder_seconds(recipe, job, mesh, profile);
  return share;
}

bool set_share(PlanRequest& request, const RankShare& share) {
  request.planner.budget = share.budget, request.planner.host_budget = share.host_budget;
  request.planner.micro_batch = share.micro_batch, request.planner.local_world = share.local_world;
  request.of_mesh = share.resident, request.host_encoders = share.host_encoders;
  request.kept_weights = share.kept_weights;
  request.encoding = share.encoding, request.machine.beside = share.encoding.beside();
  const int64_t beside = share.host_encoders + share.kept_weights;
  if (share.host_budget <= 0 || beside == 0) return true;
  request.planner.host_budget -= beside;
  return request.planner.host_budget > 0;
}

std::optional<PlanRequest> on_mesh(PlanRequest request, const Mesh& mesh) {
  request.mesh = mesh;
  const int64_t share = div_up(request.planner.global_batch, mesh.dp_size());
  request.planner.micro_batch = std::min(request.planner.micro_batch, share);
  if (request.share_on && !set_share(request, request.share_on(mesh))) return std::nullopt;
  return request;
}

namespace {

plan::ExpertSwap moved(const Planned& planned) {
  return plan::expert_swap(planned.spec, planned.plan(), planned.machine, planned.prediction);
}
plan::GateSeconds gated(const Planned& planned) {
  return plan::gate_seconds(planned.spec, planned.plan(), planned.machine, planned.routing.soft);
}
/// Of samples with the longest text, and 8 bytes that say how long their message is.
plan::GateMean mean_of(const Planned& planned) {
  return plan::gate_mean(planned.spec, planned.plan(), planned.machine, planned.routing.frequencies,
                         planned.own_samples(), planned.host_sample + diffusion::kMessageHead + 8);
}
/// Why samples stay where they were drawn; empty: they are dealt to ranks by their experts.
std::string undealt(const Planned& planned) {
  if (!planned.routing.gated) return "each step trains one expert, on all ranks";
  if (planned.routing.soft) return "all experts run every sample, on the rank that has it";
  if (planned.plan().mesh.dp_size() == 1) return "one rank has all samples";
  return planned.routing.deals ? "" : "experts.deal = off";
}
std::string print(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}
std::string percent(double share) { return print("%.3g %%", 100 * share); }
/// What an expert's passes take of the mean step, by the plan that they run by.
struct ExpertUse {
  size_t plan = 0;                ///< in Planned::by_use
  double seconds = 0, alike = 0;  ///< by it; by the plan of all
};
/// With experts.by_use, of each expert: subtracts what their own plans save from `mean`, and has its dummies with them.
std::vector<ExpertUse> uses_of(const Planned& planned, plan::GateMean& mean) {
  std::vector<ExpertUse> uses;
  if (planned.by_use.empty()) return uses;
  std::vector<int64_t> micro_batches;
  const bool deals = undealt(planned).empty();
  const auto& passes = deals ? mean.forecast.dealt.passes : mean.forecast.undealt.passes;
  for (const size_t plan : planned.plans_of_experts(planned.routing.frequencies)) {
    const auto& of_expert = passes.at(uses.size());
    const ExpertUse use{plan, plan::seconds_of(planned.by_use[plan], of_expert),
                        plan::seconds_of(planned.by_use[0], of_expert)};
    (deals ? mean.dealt : mean.undealt) -= use.alike - use.seconds;
    micro_batches.push_back(planned.by_use[plan].plan.micro_batch);
    uses.push_back(use);
  }
  mean.forecast = plan::deal_forecast(planned.routing.frequencies, planned.own_samples(), micro_batches,
                                      planned.plan().together > 1);
  return uses;
}
/// Of a hard gate: the mean step, what of the ranks' time it leaves unused, and the deal.
void add_mean_rows(const Planned& planned, std::vector<SecondsRow>& rows) {
  plan::GateMean mean = mean_of(planned);
  const std::vector<ExpertUse> uses = uses_of(planned, mean);
  const std::string why = undealt(planned), as_drawn = percent(mean.forecast.undealt.idle);
  std::string with = "experts chosen ";
  for (const double frequency : planned.routing.frequencies) with += print("%.3g ", frequency);
  with += "(" + planned.routing.frequencies_from + "), ranks idle for ";
  if (why.empty())
    rows.push_back({"mean step", format_seconds(mean.dealt),
                    with + percent(mean.forecast.dealt.idle) + "; if samples stayed where they were drawn " +
                        format_seconds(mean.undealt) + " and " + as_drawn});
  else
    rows.push_back({"mean step", format_seconds(mean.undealt), with + as_drawn});
  const std::string sent = format_bytes(static_cast<int64_t>(mean.mean_bytes)) + " of a rank, at most " +
                           format_bytes(mean.worst_bytes) + " in " + format_seconds(mean.worst_seconds);
  rows.push_back({"deal", why.empty() ? format_seconds(mean.mean_seconds) : "off", why.empty() ? sent : why});
  rows.push_back({"side by side", planned.apart.empty() ? print("%.2g", mean.forecast.pairs) : "off",
                  planned.apart.empty()
                      ? "pairs of experts in a step, whose last micro-batches ranks compute at one time"
                      : planned.apart});
  for (size_t e = 0; e < uses.size(); ++e) {
    const plan::Plan& own = planned.by_use[uses[e].plan].plan;
    rows.push_back(
        {"expert " + std::to_string(e), format_seconds(uses[e].seconds),
         "of the mean step, in micro-batches of " + std::to_string(own.micro_batch) +
             (uses[e].plan == 0 ? " by the plan above"
                                : ": " + own.summary() + "; by the plan above " + format_seconds(uses[e].alike))});
  }
}
std::string name_of(const Planned& planned, int expert) {
  const auto e = static_cast<size_t>(expert);
  return e < planned.routing.names.size() ? planned.routing.names[e] : "expert " + std::to_string(expert);
}
/// Mean seconds of a step, with the waiting time of expert swaps spread over all steps.
double mean_seconds(const Planned& planned, const plan::ExpertSwap& change) {
  return planned.mean_step() + planned.routing.changes * change.waited;
}

}  // namespace

double mean_step_seconds(const Planned& planned) {
  if (planned.plan().experts <= 1 || planned.routing.gated) return planned.mean_step();
  return mean_seconds(planned, moved(planned));
}

std::vector<SecondsRow> expert_rows(const Planned& planned) {
  if (planned.plan().experts <= 1) return {};
  if (planned.routing.gated) {
    const plan::GateSeconds gate = gated(planned);
    if (planned.routing.soft)
      return {{"with the gate", format_seconds(gate.alike), "all experts evaluate every sample"},
              {"deal", "off", undealt(planned)}};
    std::vector<SecondsRow> rows;
    rows.push_back({"with the gate", format_seconds(gate.alike),
                    "if all samples choose one expert, to " + format_seconds(gate.different) + " if they choose " +
                        std::to_string(gate.experts) + " different experts, " + format_seconds(gate.disagreeing) +
                        " where the ranks disagree and each of them chooses one"});
    add_mean_rows(planned, rows);
    return rows;
  }
  const plan::ExpertSwap change = moved(planned);
  std::vector<SecondsRow> rows;
  for (const auto& [expert, step] : planned.of_expert)
    rows.push_back(
        {name_of(planned, expert), format_seconds(step.total),
         "a step of it, above of the " + name_of(planned, 0) + " expert: " + planned.plan().as_of(expert).summary()});
  const std::string often = planned.run.matches() && planned.run.expert_of
                                ? print("%.3g in a step", planned.routing.changes) + ", between its networks"
                                : "before " + percent(planned.routing.changes) + " of the steps";
  if (change.bytes == 0) {
    rows.push_back({"expert swap", format_seconds(0), often + ": nothing moves"});
    if (planned.of_expert.empty()) return rows;
  } else {
    rows.push_back({"expert swap", format_seconds(change.waited),
                    often + ", of " + format_seconds(change.seconds) + " in which " + format_bytes(change.bytes) +
                        " of a rank move"});
  }
  rows.push_back({"mean step", format_seconds(mean_seconds(planned, change)), "expert swaps included"});
  rows.push_back({"deal", "off", undealt(planned)});
  return rows;
}

nlohmann::ordered_json expert_json(const Planned& planned) {
  if (planned.plan().experts <= 1) return nullptr;
  nlohmann::ordered_json json = {{"router", planned.routing.gated ? "gate" : "turns"},
                                 {"count", planned.plan().experts}};
  const std::string why = undealt(planned);
  json["deal"] = why.empty() ? "on" : "off: " + why;
  if (planned.routing.gated) {
    const plan::GateSeconds gate = gated(planned);
    json["soft"] = planned.routing.soft;
    json["alike_step_seconds"] = gate.alike;
    json["different_step_seconds"] = gate.different;
    json["different_experts"] = gate.experts;
    json["disagreeing_step_seconds"] = gate.disagreeing;
    json["disagreeing_experts"] = gate.disagreeing_experts;
    if (planned.routing.soft) return json;
    plan::GateMean mean = mean_of(planned);
    const std::vector<ExpertUse> uses = uses_of(planned, mean);
    for (const ExpertUse& use : uses) {
      const plan::Plan& own = planned.by_use[use.plan].plan;
      json["by_use"].push_back({{"micro_batch", own.micro_batch},
                                {"plan", own.summary()},
                                {"mean_seconds", use.seconds},
                                {"alike_mean_seconds", use.alike}});
    }
    json["side_by_side"] = planned.apart.empty() ? "on" : "off: " + planned.apart;
    json["by_frequency"] = {{"frequencies", planned.routing.frequencies},
                            {"frequencies_from", planned.routing.frequencies_from},
                            {"idle_share", mean.forecast.dealt.idle},
                            {"dummy_share", mean.forecast.dealt.dummies},
                            {"mean_step_seconds", mean.dealt},
                            {"undealt_idle_share", mean.forecast.undealt.idle},
                            {"undealt_dummy_share", mean.forecast.undealt.dummies},
                            {"undealt_mean_step_seconds", mean.undealt},
                            {"sample_bytes", mean.sample_bytes},
                            {"moved_samples", mean.forecast.moved},
                            {"pairs", mean.forecast.pairs},
                            {"mean_bytes", mean.mean_bytes},
                            {"worst_bytes", mean.worst_bytes},
                            {"mean_seconds", mean.mean_seconds},
                            {"worst_seconds", mean.worst_seconds}};
    return json;
  }
  const plan::ExpertSwap change = moved(planned);
  json["changes_per_step"] = planned.routing.changes;
  json["moved_bytes"] = change.bytes;
  json["moved_seconds"] = change.seconds;
  json["moved_waited_seconds"] = change.waited;
  json["mean_step_seconds"] = mean_seconds(planned, change);
  for (const auto& [expert, step] : planned.of_expert) json["step_seconds_of"][name_of(planned, expert)] = step.total;
  return json;
}

}  // namespace tessera::planning
