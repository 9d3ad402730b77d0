#pragma once
// Whether a plan stores anything on disk, and the check that plan.nvme then names a folder.
//
//   if (uses_nvme(plan)) require_nvme_folder(recipe.plan.nvme, "the plan puts buffers on nvme");
#include <string>
#include <string_view>

namespace tessera::plan {

struct Plan;

/// The disk folder that one rank uses.
struct DiskPlace {
  std::string folder = {};
  /// Keeps a CRC-32C of each written region in host memory and compares it when the region is read.
  bool checksum = false;
};

/// Whether the plan stores anything on disk: parameters, gradients, states, offloaded activations or inactive experts.
bool uses_nvme(const Plan& plan);

/// Throws UserError (usage) if `folder` is empty. `who` names the setting that needs it: "plan.states = \"nvme\"".
void require_nvme_folder(std::string_view folder, std::string_view who);

}  // namespace tessera::plan
