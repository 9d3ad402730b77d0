#pragma once
// Converts a recipe into a request to the planner.
//
//   const PlanRequest request = plan_request(recipe, job, shapes, mesh, prompts);
//   make_plan(request);
#include <vector>

#include "tessera/comm/rendezvous.h"
#include "tessera/job/job.h"
#include "tessera/plan/plan_file.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// The planner's input for the job, to which it refers, in the shapes of `recipe`. `prompts`: number of sampled prompts.
PlanRequest plan_request(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                         int prompts);

/// Which network trains each step of `part`, and what runs before it: of several networks that take turns, and of a gate.
/// plan_request() takes the recipe of a student with a critic for a run of one part.
void share_steps(PlanRequest& request, const job::Job& job, const recipe::RunPart& part,
                 const std::function<int(int64_t)>& expert_of);

/// Of `latents` [C, F, H, W] those that may have larger halos than `largest` and than each other: a convolution's halo
/// is as large as rows are wide, or frames are large.
std::vector<std::array<int64_t, 4>> wider_than(const std::array<int64_t, 4>& largest,
                                               const std::vector<std::array<int64_t, 4>>& latents);

/// Bytes that the driver and NCCL take of a rank's GPU in a training of the job, where plan.profile has a target; else 0, not
/// known.
int64_t beside_plan(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh);

/// Bytes of the embeddings of the sampled prompts and the negative prompt.
int64_t prompt_bytes(const job::Job& job, int prompts);

// Makes a plan, with advice if none fits and warnings about settings without effect.
//
//   const Planned planned = make_plan(request);
//   planned.choice.advice; planned.choice.warning;

/// Measures the model, chooses (or takes) the plan and simulates it. If nothing fits, choice.advice says what to
/// change, with memory and time of the changed run.
Planned make_plan(const PlanRequest& request);
/// Chooses whether the plan's steps are graphs, and warns of what has no effect under it; of a plan without warnings.
void tell_of(Planned& planned, const PlanRequest& request);

/// What is encoded before the steps is held against the budget as they are: a plan beside which it does not fit does not
/// fit, and its advice says with which budget it would.
void hold_prepare(const PlanRequest& request, Planned& planned);

// Checks that a rank executes the instructions that the planner simulated for it to price its time and memory.
//
//   const std::vector<PricedStep> priced = priced_steps(planned);          // on the rank that planned: by rank
//   require_priced(schedules.train, priced[rank], rank);                   // on each rank, of what it will execute

/// The training step that was simulated for a rank; of the first expert's.
struct PricedStep {
  plan::InstructionsHash instructions;
  bool exact = true;  ///< false: a rank with the same stages and samples was simulated in its place
};

std::vector<PricedStep> priced_steps(const Planned& planned);

/// Throws InternalError where `schedule` has other instructions.
void require_priced(const plan::Schedule& schedule, const PricedStep& priced, int rank);

}  // namespace tessera::planning
