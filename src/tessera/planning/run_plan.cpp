#include "tessera/planning/run_plan.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/ops/session.h"
#include "tessera/plan/compile/run_walk.h"
#include "tessera/plan/plan.h"
#include "tessera/planning/measure.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/plan_view.h"

namespace tessera::planning {

namespace {

bool same_placement(const plan::Plan& a, const plan::Plan& b) {
  return a.pipeline == b.pipeline && a.idle == b.idle &&
         std::equal(a.units.begin(), a.units.end(), b.units.begin(), b.units.end(), plan::same_buffers);
}

/// `plan` with the placement of persistent buffers from `other`.
plan::Plan with_placement_of(plan::Plan plan, const plan::Plan& other) {
  plan.pipeline = other.pipeline;
  plan.idle = other.idle, plan.teacher = other.teacher;
  const auto place = [&](std::vector<plan::UnitPlan>& units) {
    for (size_t u = 0; u < units.size(); ++u) {
      plan::UnitPlan& unit = units[u];
      const plan::UnitPlan& wanted = other.units[u];
      unit.parameters = wanted.parameters, unit.gradients = wanted.gradients, unit.states = wanted.states;
      unit.update_on = wanted.update_on;
      if (!plan::same_buffers(unit, wanted)) unit.strategy = wanted.strategy;
    }
  };
  place(plan.units);
  for (auto& [expert, units] : plan.of_expert) place(units);
  return plan;
}

/// The same stage under another plan.
Planned with_plan(Planned planned, plan::Plan plan, const PlanRequest& request) {
  planned.choice.plan = std::move(plan);
  planned.choice.why =
      "chosen for all stages together: parameters, gradients and states keep their places from stage to stage";
  planned.choice.warning.clear();
  evaluate(planned, request);
  return planned;
}

/// Unifies the placement of all stages: that of the stage under which all stages fit and the run is shortest.
void unify_placement(std::vector<PartPlan>& plans, const std::vector<PlanRequest>& requests) {
  const auto alike = [&](const PartPlan& p) { return same_placement(p.planned.plan(), plans[0].planned.plan()); };
  if (std::all_of(plans.begin(), plans.end(), alike)) return;
  std::vector<Planned> best;
  std::pair<size_t, double> best_score;  // number of stages that do not fit, seconds of the run
  for (const PartPlan& leader : plans) {
    std::vector<Planned> tried;
    std::pair<size_t, double> score;
    for (size_t p = 0; p < plans.size(); ++p) {
      const plan::Plan moved = with_placement_of(plans[p].planned.plan(), leader.planned.plan());
      tried.push_back(moved == plans[p].planned.plan() ? plans[p].planned
                                                       : with_plan(plans[p].planned, moved, requests[p]));
      score.first += !tried.back().choice.fits;
      score.second += tried.back().choice.seconds * static_cast<double>(plans[p].part.last - plans[p].part.first + 1);
    }
    if (best.empty() || score < best_score) best = std::move(tried), best_score = score;
  }
  for (size_t p = 0; p < plans.size(); ++p) {
    if (best[p].plan() != plans[p].planned.plan()) tell_of(best[p], requests[p]);
    plans[p].planned = std::move(best[p]);
  }
}

/// A plan file has the recipe's batch; a stage that changes the batch runs it with its own.
void check_by_hand(PlanRequest& request, const recipe::RunPart& part, int64_t batch) {
  if (!request.by_hand) return;
  const int64_t file = request.by_hand->global_batch;
  if (part.number == 0 && file != batch)
    throw UserError(Exit::usage, "plan.file",
                    part.recipe.plan.file + " has global_batch = " + std::to_string(file) +
                        (file == 1 ? " (the default of a plan without the key)" : "") +
                        ", the recipe train.global_batch = " + std::to_string(batch),
                    "set it in one of them");
  request.by_hand->global_batch = batch;
}

/// The stages, each with the plan that `planned` makes for it; their requests go to `requests`.
std::vector<PartPlan> each_part(std::vector<recipe::RunPart> parts, const job::Job& job, const Mesh& mesh,
                                const std::vector<int>& prompts, const OnPlanPhase& on_phase,
                                const std::function<Planned(const PlanRequest&, size_t part)>& planned,
                                std::vector<PlanRequest>& requests) {
  // Prompt embeddings of all stages are resident for the whole run.
  std::vector<int64_t> embeddings;
  int64_t all = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const bool shared = p > 0 && recipe::same_data(parts[p].recipe, parts[p - 1].recipe);
    embeddings.push_back(prompt_bytes(job, prompts[p]));
    if (!shared) all += embeddings.back();
  }
  std::function<int(int64_t)> expert_of;
  if (job.experts.several() && !job.experts.gated)
    expert_of = [order = job::plan_expert_order(job.experts, parts)](int64_t step) {
      return static_cast<int>(order.expert(step));
    };
  std::vector<PartPlan> plans;
  for (size_t p = 0; p < parts.size(); ++p) {
    recipe::RunPart& part = parts[p];
    recipe::in_part(part, [&] {
      const job::Shapes shapes = job::shapes_of(part.recipe, *job.model, *job.codec);
      PlanRequest request = plan_request(part.recipe, job, shapes, mesh, prompts[p]);
      request.resident += all - embeddings[p];
      check_by_hand(request, part, shapes.batch);
      request.run.first_step = part.first;
      request.run.last_step = part.last;
      share_steps(request, job, part, expert_of);
      request.on_phase = on_phase;
      plans.push_back({part, shapes, planned(request, p)});
      // a plan.file may use nvme, which the recipe's checks did not see
      if (plan::uses_nvme(plans.back().planned.plan()))
        plan::require_nvme_folder(part.recipe.plan.nvme, "the plan puts buffers on nvme");
      requests.push_back(std::move(request));
    });
  }
  return plans;
}

}  // namespace

std::vector<PartPlan> plan_parts(std::vector<recipe::RunPart> parts, const job::Job& job, const Mesh& mesh,
                                 const std::vector<int>& prompts, bool prepared, const OnPlanPhase& on_phase) {
  std::vector<PlanRequest> requests;
  const bool several = parts.size() > 1;
  const auto make = [several](const PlanRequest& request, size_t) {
    PlanRequest own = request;
    if (several) own.planner.gather = own.planner.gather.value_or(false);  // all parts have the same buffers
    return make_plan(own);
  };
  std::vector<PartPlan> plans = each_part(std::move(parts), job, mesh, prompts, on_phase, make, requests);
  unify_placement(plans, requests);
  for (size_t p = 0; p < plans.size(); ++p) plan_by_use(plans[p].planned, requests[p]);
  for (size_t p = 0; p < plans.size(); ++p) {
    requests[p].routing.together = requests[p].routing.together && plans.size() == 1;
    plan_together(plans[p].planned, requests[p]);
  }
  for (size_t p = 0; !prepared && p < plans.size(); ++p) hold_prepare(requests[p], plans[p].planned);
  return plans;
}

std::vector<ops::ProductShape> product_shapes(const std::vector<recipe::RunPart>& parts, const job::Job& job,
                                              const Mesh& mesh, const std::vector<int>& prompts) {
  std::set<ops::ProductShape> all;
  size_t index = 0;
  for (const PartPlan& p : plan_parts(parts, job, mesh, prompts))
    recipe::in_part(p.part, [&] {
      const ops::AskedProductsScope scope(&all);
      MeasuredModels anew;
      measure_batch(plan_request(p.part.recipe, job, p.shapes, mesh, prompts[index++]), p.planned.plan(), anew);
    });
  return {all.begin(), all.end()};
}

std::vector<PartPlan> take_parts(std::vector<recipe::RunPart> parts, const job::Job& job, const Mesh& mesh,
                                 const std::vector<int>& prompts, const std::vector<std::string>& plans,
                                 const std::vector<std::string>& by_use, int rank, const OnPlanPhase& on_phase) {
  std::vector<PlanRequest> requests;
  return each_part(
      std::move(parts), job, mesh, prompts, on_phase,
      [&](const PlanRequest& request, size_t part) {
        return take_plan(request, plans.at(part), rank, by_use.at(part));
      },
      requests);
}

void require_fit(const std::vector<PartPlan>& plans) {
  for (const PartPlan& p : plans)
    recipe::in_part(p.part, [&] {
      if (!p.planned.choice.fits) throw UserError(Exit::no_fit, "plan", p.planned.choice.advice);
    });
}

void require_prepare(const std::vector<recipe::RunPart>& parts, const job::Job& job, const Mesh& mesh) {
  for (const recipe::RunPart& part : parts)
    recipe::in_part(part, [&] {
      const job::Shapes shapes = job::shapes_of(part.recipe, *job.model, *job.codec);
      Planned planned;
      planned.choice.fits = true;
      hold_prepare(plan_request(part.recipe, job, shapes, mesh, /*prompts=*/0), planned);
      if (!planned.choice.fits) throw UserError(Exit::no_fit, "prepare", planned.choice.advice);
    });
}

namespace {

/// "stage 2, to step 40: train.lr = 1e-5"; empty where there is one stage.
std::string title(const std::vector<PartPlan>& plans, const PartPlan& p) {
  if (plans.size() == 1) return {};
  return (&p == &plans.front() ? "" : "\n") + p.part.name() + ", to step " + std::to_string(p.part.last) +
         (p.part.changes.empty() ? "" : ": " + p.part.changes) + "\n";
}

const char* name_of(recipe::Recipe::Role role) {
  using Role = recipe::Recipe::Role;
  return role == Role::train ? "train" : role == Role::prior ? "prior" : "regularisation";
}

/// The least and the most tokens of a set's shapes.
std::array<int64_t, 2> tokens_of(const PartPlan& p, const recipe::Recipe::DataSet& set) {
  std::array<int64_t, 2> tokens = {std::numeric_limits<int64_t>::max(), 0};
  const std::vector<data::Bucket>& all = p.part.recipe.data.clips.buckets;
  for (size_t b = 0; b < all.size() && b < p.shapes.bucket_tokens.size(); ++b)
    if (std::ranges::any_of(set.data.clips.buckets,
                            [&](const data::Bucket& own) { return data::is_shape(own, all[b]); }))
      tokens = {std::min(tokens[0], p.shapes.bucket_tokens[b]), std::max(tokens[1], p.shapes.bucket_tokens[b])};
  return tokens;
}

/// A line for each [[data.set]]: how often its samples come, and what they are.
std::string sets_text(const PartPlan& p) {
  const std::vector<recipe::Recipe::DataSet>& sets = p.part.recipe.sets;
  if (sets.empty()) return {};
  double weights = 0;
  for (const recipe::Recipe::DataSet& set : sets) weights += set.weight;
  std::string text = "data sets\n";
  for (const recipe::Recipe::DataSet& set : sets) {
    char amount[48], loss[48];
    if (set.weight > 0)
      std::snprintf(amount, sizeof amount, "%.1f %% of the samples", 100 * set.weight / weights);
    else if (set.role == recipe::Recipe::Role::regularisation)
      std::snprintf(amount, sizeof amount, "as many samples as the others");
    else
      std::snprintf(amount, sizeof amount, "each sample %g times an epoch", set.repeats);
    std::snprintf(loss, sizeof loss, ", loss x %g", set.loss_weight);
    const std::vector<data::Bucket>& shapes = set.data.clips.buckets;
    const auto [least, most] = tokens_of(p, set);
    text += "  " + set.name + ": " + amount + ", " + shapes.front().text() +
            (shapes.size() > 1 ? " and " + std::to_string(shapes.size() - 1) + " more" : "") + ", " +
            (least < most ? std::to_string(least) + " to " : "") + std::to_string(most) + " tokens" +
            (set.loss_weight != 1 ? loss : "") +
            (set.role != recipe::Recipe::Role::train ? std::string(", role ") + name_of(set.role) : "") +
            (set.data.masks.on() ? ", with masks" : "") +
            (set.to_step > 0     ? ", steps " + std::to_string(set.from_step) + " to " + std::to_string(set.to_step)
             : set.from_step > 1 ? ", from step " + std::to_string(set.from_step)
                                 : "") +
            "\n";
  }
  return text;
}

nlohmann::ordered_json sets_json(const PartPlan& p) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const recipe::Recipe::DataSet& set : p.part.recipe.sets) {
    const auto [least, most] = tokens_of(p, set);
    nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
    for (const data::Bucket& shape : set.data.clips.buckets) shapes.push_back(shape.text());
    all.push_back({{"set", set.name},
                   {set.weight > 0 ? "weight" : "repeats", set.weight > 0 ? set.weight : set.repeats},
                   {"role", name_of(set.role)},
                   {"loss_weight", set.loss_weight},
                   {"masks", set.data.masks.on()},
                   {"from_step", set.from_step},
                   {"to_step", set.to_step},
                   {"shapes", shapes},
                   {"tokens", {least, most}}});
  }
  return all;
}

/// plan_json() of a part, with its data sets.
nlohmann::ordered_json part_json(const PartPlan& p) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(plan_json(p.planned));
  if (!p.part.recipe.sets.empty()) json["data_sets"] = sets_json(p);
  return json;
}

}  // namespace

std::string plans_words(const std::vector<PartPlan>& plans) {
  std::string text;
  for (const PartPlan& p : plans) text += title(plans, p) + plan_words(p.planned);
  return text;
}

std::string plans_text(const std::vector<PartPlan>& plans) {
  std::string text;
  for (const PartPlan& p : plans) text += title(plans, p) + plan_text(p.planned) + sets_text(p);
  return text;
}

std::string plans_json(const std::vector<PartPlan>& plans) {
  using Json = nlohmann::ordered_json;
  Json json = part_json(plans[0]), stages = Json::array();
  if (plans.size() == 1) return json.dump(2) + "\n";
  bool fit = true;
  std::string advice;
  for (const PartPlan& p : plans) {
    fit = fit && p.planned.choice.fits;
    if (advice.empty() && !p.planned.choice.fits) advice = p.part.name() + ": " + p.planned.choice.advice;
    if (p.part.number == 0) continue;
    Json stage = {{"stage", p.part.number}, {"from", p.part.first}, {"to", p.part.last}, {"changes", p.part.changes}};
    stage.update(part_json(p));
    stages.push_back(std::move(stage));
  }
  json["fits"] = fit;
  json["advice"] = advice;
  json["stages"] = stages;
  return json.dump(2) + "\n";
}

void write_schedule(const std::vector<PartPlan>& plans, const std::string& file) {
  checkpoint::DurableFile out(file, 0);
  std::string lines;
  const auto put = [&](size_t most) {
    if (lines.size() <= most) return;
    out.write(lines.data(), std::ssize(lines));
    lines.clear();
  };
  constexpr size_t kAtOnce = size_t{1} << 20;
  const int world = plans.at(0).planned.plan().mesh.world();
  for (int rank = 0; rank < world; ++rank) {
    for (const PartPlan& p : plans) {
      int64_t current = -1;
      int base = 0;
      plan::each_schedule(
          p.planned.run, p.planned.schedules(rank),
          [&](int64_t step, const plan::Schedule& schedule) {
            if (step != current) current = step, base = 0;
            for (size_t i = 0; i < schedule.list.size(); ++i)
              lines += plan::to_json(schedule.list[i], schedule.phase, rank, step, static_cast<int>(i), base) + '\n';
            put(kAtOnce);
            base += static_cast<int>(schedule.list.size());
          },
          plan::passes_before(p.planned.run, p.planned.plan()));
    }
  }
  put(0);
  out.commit();
}

recipe::Recipe resolved(recipe::Recipe recipe, const std::vector<PartPlan>& plans, const comm::Rendezvous& place) {
  const Mesh asked = fill_mesh(recipe.mesh, std::max(place.asked_world, place.world));
  recipe.set("mesh.dp_shard", std::to_string(asked[Axis::dp_shard]));
  for (const auto& [key, chosen] :
       {std::pair("data.vae", recipe.data.vae), {"data.text_encoder", recipe.data.text_encoder}})
    if (recipe.values.at(key) == "auto") recipe.set(key, chosen);
  for (const PartPlan& p : plans) {
    // Set by the user; or left open, as passes of experts have their own.
    if (p.part.recipe.train.micro_batch > 0 || p.part.recipe.experts.plans_by_use()) continue;
    const std::string chosen = std::to_string(p.planned.plan().micro_batch);
    if (p.part.number == 0)
      recipe.set("train.micro_batch", chosen);
    else
      recipe.stages.at(static_cast<size_t>(p.part.number) - 1).changes["train.micro_batch"] = chosen;
  }
  return recipe;
}

}  // namespace tessera::planning
