#pragma once
// Checks that a rank executes the instructions that the planner simulated for it to price its time and memory.
//
//   const std::vector<PricedStep> priced = priced_steps(planned);          // on the rank that planned: by rank
//   require_priced(schedules.train, priced[rank], rank);                   // on each rank, of what it will execute
#include <vector>

#include "tessera/plan/plan_hash.h"
#include "tessera/planning/planning.h"

namespace tessera::planning {

/// The training step that was simulated for a rank; of the first expert's.
struct PricedStep {
  plan::InstructionsHash instructions;
  bool exact = true;  ///< false: a rank with the same stages and samples was simulated in its place
};

std::vector<PricedStep> priced_steps(const Planned& planned);

/// Throws InternalError where `schedule` has other instructions.
void require_priced(const plan::Schedule& schedule, const PricedStep& priced, int rank);

}  // namespace tessera::planning
