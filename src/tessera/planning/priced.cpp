#include "tessera/planning/priced.h"

#include "tessera/base/check.h"

namespace tessera::planning {

std::vector<PricedStep> priced_steps(const Planned& planned) {
  const plan::Plan& plan = planned.plan();
  std::map<std::array<int64_t, 2>, PricedStep> by_kind;
  for (const plan::RankGroup& group : planned.prediction.groups)
    by_kind[plan::rank_kind(plan, group.rank)] = {plan::instructions_hash(group.schedule), false};
  std::vector<PricedStep> by_rank;
  for (int rank = 0; rank < plan.mesh.world(); ++rank) by_rank.push_back(by_kind.at(plan::rank_kind(plan, rank)));
  for (const plan::RankGroup& group : planned.prediction.groups) by_rank[static_cast<size_t>(group.rank)].exact = true;
  return by_rank;
}

void require_priced(const plan::Schedule& schedule, const PricedStep& priced, int rank) {
  const plan::InstructionsHash compiled = plan::instructions_hash(schedule);
  check_internal(
      compiled.work == priced.instructions.work && (!priced.exact || compiled == priced.instructions), "train.plan",
      "rank " + std::to_string(rank) + " compiled a step of " + std::to_string(schedule.list.size()) +
          " instructions with hashes " + std::to_string(compiled.work) + " and " + std::to_string(compiled.exact) +
          ", its plan was priced with " + std::to_string(priced.instructions.work) + " and " +
          std::to_string(priced.instructions.exact) + (priced.exact ? "" : " on a rank like it"));
}

}  // namespace tessera::planning
