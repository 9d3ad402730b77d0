#pragma once
// Buffers that a plan puts on a disk need a folder there: which one, and the error where none is named, said once.
//
//   if (uses_nvme(plan)) require_nvme_folder(recipe.plan.nvme, "the plan puts buffers on nvme");
#include <string>
#include <string_view>

namespace tessera::plan {

struct Plan;

/// The disk of a rank.
struct DiskPlace {
  std::string folder = {};
  /// Keep a CRC-32C of each region written, in memory, and compare it when the region is read.
  bool checksum = false;
};

/// Whether anything rests on the disk: parameters, gradients, states, activations that leave, or experts without a
/// turn.
bool uses_nvme(const Plan& plan);

/// Throws UserError (usage) where `folder` is empty. `who` wants one: "plan.states = \"nvme\"".
void require_nvme_folder(std::string_view folder, std::string_view who);

}  // namespace tessera::plan
