#pragma once
// What a run writes to its disk, and the check before it that there is room for all of it.
//
//   run_disk(planned).bytes();
//   check_disk(planned, recipe.run.out);
#include <filesystem>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// What is on the disk at once, at most.
struct RunDisk {
  int64_t checkpoints = 0;       ///< with the one being written, the newest proved one, and of several experts one more
  int64_t checkpoint_bytes = 0;  ///< masters and optimiser states of all trained parameters, of all experts
  int64_t beside_bytes = 0;      ///< the files of a LoRA in each checkpoint
  int64_t exports = 0;           ///< of saves
  int64_t models = 1;            ///< at the end: that of the average too
  int64_t export_bytes = 0;      ///< the model in fp32, all experts of it, or the adapters under each of their names

  int64_t bytes() const { return checkpoints * (checkpoint_bytes + beside_bytes) + (exports + models) * export_bytes; }
  /// "3 checkpoints of 1.00 GiB, 10 exports and model of 2.00 GiB each"
  std::string text() const;
};
RunDisk run_disk(const Planned& planned);

/// Throws UserError (disk) with need and free space if what the run writes does not fit beside the existing files.
/// `beyond`: checkpoints and exports that the run leaves behind by going back, which stay on the disk.
void check_disk(const Planned& planned, const std::filesystem::path& out,
                const std::vector<std::filesystem::path>& beyond = {});

/// Throws UserError (usage) if a run in folder `out` would overwrite a recipe.toml that no run wrote. A run writes
/// recipe.toml after plan.json, so without plan.json the file is the user's own.
void check_own_folder(const std::filesystem::path& out);

}  // namespace tessera::planning
