#pragma once
// Checks before a run that the disk has room for everything it will write.
//
//   check_disk(planned, recipe, recipe.run.out);
#include <filesystem>

#include "tessera/planning/planning.h"
#include "tessera/recipe/recipe.h"

namespace tessera::planning {

/// Bytes of a complete checkpoint: masters and optimiser states of all trained parameters in the plan's formats, of all
/// experts. Frozen parameters are not in it; files for other programs (checkpoint.export) come on top.
int64_t checkpoint_bytes(const Planned& planned);
/// Bytes of an export of the run: the model in fp32, all experts of it, or the adapters under each of lora.export's names.
int64_t export_bytes(const Planned& planned, const recipe::Recipe::Lora& lora);
/// Number of complete checkpoints on disk at once, including the one being written and the newest proved one.
int64_t checkpoints_on_disk(const Planned& planned);

/// Throws UserError (disk) with need and free space if what the run writes does not fit beside the existing files: its
/// checkpoints with their exports, model/ and model_ema/. `beyond`: checkpoints that the run leaves behind by going back,
/// which stay on the disk.
void check_disk(const Planned& planned, const recipe::Recipe& recipe, const std::filesystem::path& out,
                const std::vector<std::filesystem::path>& beyond = {});

/// Throws UserError (usage) if a run in folder `out` would overwrite a recipe.toml that no run wrote. A run writes
/// recipe.toml after plan.json, so without plan.json the file is the user's own.
void check_own_folder(const std::filesystem::path& out);

}  // namespace tessera::planning
