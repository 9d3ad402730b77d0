#pragma once
// What a run writes, told before it starts: a disk that fills up at the third checkpoint has wasted two.
//
//   check_disk(planned, recipe.run.out);
#include <filesystem>

#include "tessera/planning/planning.h"

namespace tessera::planning {

/// Bytes of a whole checkpoint: parameters and both moments in fp32, of all experts.
int64_t checkpoint_bytes(const Planned& planned);
/// Whole checkpoints on disk at once, the one being written included.
int64_t checkpoints_on_disk(const Planned& planned);

/// Throws UserError (disk) naming need and free space when the checkpoints of the run do not fit beside what is there.
/// `beyond`: checkpoints that the run leaves behind by going back: they stay on the disk, and new ones come.
void check_disk(const Planned& planned, const std::filesystem::path& out,
                const std::vector<std::filesystem::path>& beyond = {});

/// Throws UserError (usage) where a run in folder `out` would write over a recipe.toml that is not a run's: a run
/// writes it behind plan.json, so where the second is missing, the first is the user's own.
void check_own_folder(const std::filesystem::path& out);

}  // namespace tessera::planning
