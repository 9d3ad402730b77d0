#pragma once
// What a recipe asks of the planner.
//
//   const PlanRequest request = plan_request(recipe, job, shapes, mesh, prompts);
//   make_plan(request);
#include "tessera/job/job.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// What the planner needs of the job, in the shapes of `recipe`. `prompts`: how many are sampled.
PlanRequest plan_request(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                         int prompts);

/// Bytes of the embeddings of the sampled prompts and of the negative one.
int64_t prompt_bytes(const job::Job& job, int prompts);

}  // namespace tessera::planning
