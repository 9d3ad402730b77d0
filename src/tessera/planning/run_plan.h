#pragma once
// The plans of all parts of a run: each is planned for its own shapes and batch before step one, and what rests between
// steps lies the same way in all of them, because it stays where it is when a stage begins.
//
//   const std::vector<PartPlan> plans = plan_parts(run_parts(recipe), job, mesh, prompts);
//   require_fit(plans);
//   write_schedule(plans, "schedule.jsonl");
#include <vector>

#include "tessera/comm/rendezvous.h"
#include "tessera/job/job.h"
#include "tessera/planning/planning.h"
#include "tessera/recipe/stages.h"

namespace tessera::planning {

struct PartPlan {
  recipe::RunPart part;
  job::Shapes shapes;
  Planned planned;
};

/// `prompts`: how many each part samples. Throws UserError (usage) naming the stage whose shapes the model or the
/// autoencoder does not take.
std::vector<PartPlan> plan_parts(std::vector<recipe::RunPart> parts, const job::Job& job, const Mesh& mesh,
                                 const std::vector<int>& prompts);

/// Throws UserError (no_fit) with the advice for the first part that does not fit, naming its stage.
void require_fit(const std::vector<PartPlan>& plans);

/// As plan_text and plan_json of one plan; with stages, the others follow by name or stand in "stages".
std::string plans_text(const std::vector<PartPlan>& plans);
std::string plans_json(const std::vector<PartPlan>& plans);

/// Writes every instruction of every rank and step of the run. Throws UserError (disk).
void write_schedule(const std::vector<PartPlan>& plans, const std::string& file);

/// The recipe with the micro-batches that were chosen and the mesh that was filled (of all ranks that were asked for,
/// also while some are gone): running it again, or planning it, chooses nothing anew.
recipe::Recipe resolved(recipe::Recipe recipe, const std::vector<PartPlan>& plans, const comm::Rendezvous& place);

}  // namespace tessera::planning
