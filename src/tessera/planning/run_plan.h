#pragma once
// The plans of all stages of a run. Each stage is planned for its own shapes and batch before step 1, but buffers that
// persist between steps have the same placement in all of them, because a new stage does not move them.
//
//   const std::vector<PartPlan> plans = plan_parts(run_parts(recipe), job, mesh, prompts);
//   require_fit(plans);
//   write_schedule(plans, "schedule.jsonl");
#include <vector>

#include "tessera/comm/rendezvous.h"
#include "tessera/job/job.h"
#include "tessera/ops/products.h"
#include "tessera/planning/planning.h"
#include "tessera/recipe/stages.h"

namespace tessera::planning {

struct PartPlan {
  recipe::RunPart part;
  job::Shapes shapes;
  Planned planned;
};

/// `prompts`: number sampled in each stage. Throws UserError (usage) naming the stage whose shapes the model or the
/// autoencoder does not support. `prepared`: captions and clips are encoded, so what that takes is not held against the budget.
std::vector<PartPlan> plan_parts(std::vector<recipe::RunPart> parts, const job::Job& job, const Mesh& mesh,
                                 const std::vector<int>& prompts, bool prepared = false,
                                 const OnPlanPhase& on_phase = {});

/// Shapes of the products of a step under the plans that plan_parts() finds for the parts ([Note: algorithms of products] in
/// ops/products.h); not those in 8 bits.
std::vector<ops::ProductShape> product_shapes(const std::vector<recipe::RunPart>& parts, const job::Job& job,
                                              const Mesh& mesh, const std::vector<int>& prompts);

/// The same stages with the plans that plan_parts found on another rank, as texts (Plan::to_toml and by_use_text), for this
/// one: see take_plan.
std::vector<PartPlan> take_parts(std::vector<recipe::RunPart> parts, const job::Job& job, const Mesh& mesh,
                                 const std::vector<int>& prompts, const std::vector<std::string>& plans,
                                 const std::vector<std::string>& by_use, int rank, const OnPlanPhase& on_phase = {});

/// Throws UserError (no_fit) with the advice for the first stage that does not fit, naming it.
void require_fit(const std::vector<PartPlan>& plans);

/// The same where what is encoded before the steps has no room in a rank's budget: what `prepare` asks before it begins.
void require_prepare(const std::vector<recipe::RunPart>& parts, const job::Job& job, const Mesh& mesh);

/// One paragraph of each stage for who starts a run: time, memory and what the plan does; plans_text has the rest.
std::string plans_words(const std::vector<PartPlan>& plans);

/// plan_text and plan_json of one plan; with several stages, each follows under its name or in "stages".
std::string plans_text(const std::vector<PartPlan>& plans);
std::string plans_json(const std::vector<PartPlan>& plans);

/// Writes every instruction of every rank and step of the run. Throws UserError (disk).
void write_schedule(const std::vector<PartPlan>& plans, const std::string& file);

/// The recipe with the chosen micro-batches and the filled mesh (of all requested ranks, even if some nodes are
/// missing), so that running or planning it again chooses the same.
recipe::Recipe resolved(recipe::Recipe recipe, const std::vector<PartPlan>& plans, const comm::Rendezvous& place);

}  // namespace tessera::planning
