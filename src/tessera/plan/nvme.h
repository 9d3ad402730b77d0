#pragma once
// Buffers that a plan puts on a disk need a folder there: said once, to whoever finds that none is named.
//
//   if (uses_nvme(plan)) require_nvme_folder(recipe.plan.nvme, "the plan puts buffers on nvme");
#include <string_view>

namespace tessera::plan {

struct Plan;

/// Whether anything rests on the disk: parameters, gradients, states, activations that leave, or experts without a
/// turn.
bool uses_nvme(const Plan& plan);

/// Throws UserError (usage) where `folder` is empty. `who` wants one: "plan.states = \"nvme\"".
void require_nvme_folder(std::string_view folder, std::string_view who);

}  // namespace tessera::plan
