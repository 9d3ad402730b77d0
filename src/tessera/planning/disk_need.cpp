#include "tessera/planning/disk_need.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::planning {

namespace fs = std::filesystem;

namespace {

/// Bytes that an earlier part of the run wrote and this one replaces or keeps.
int64_t bytes_below(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code gone;  // a checkpoint may be pruned meanwhile
  for (auto at = fs::recursive_directory_iterator(folder, gone); at != fs::recursive_directory_iterator();
       at.increment(gone))
    if (at->is_regular_file(gone)) bytes += static_cast<int64_t>(at->file_size(gone));
  return bytes;
}

/// Numbers of parameters that are trained, or of all.
int64_t parameters(const Planned& planned, bool trained) {
  int64_t values = 0;
  for (const plan::UnitSpec& unit : planned.spec.units)
    for (const plan::ParamSpec& param : unit.params)
      if (!trained || param.trainable) values += param.numel();
  return values;
}

}  // namespace

RunDisk run_disk(const Planned& planned) {
  const plan::Plan& plan = planned.plan();
  const plan::StatesOf states = plan::states_of(plan.states);
  RunDisk disk;
  for (const plan::UnitSpec& unit : planned.spec.units)
    for (const plan::ParamSpec& param : unit.params) {
      if (!param.trainable) {  // the base of adapters is not saved
        if (!planned.exported.adapters) disk.checkpoint_bytes += param.numel() * size_of(DType::f32);
        continue;
      }
      disk.checkpoint_bytes += param.numel() * plan::master_bytes(plan.states.masters);
      for (const plan::StateSpec& state : states(param))
        disk.checkpoint_bytes += state.values(0, param.numel()) * size_of(state.type);
    }
  disk.checkpoint_bytes *= plan.experts;

  const int64_t every = planned.saves_by_clock ? 1 : planned.run.checkpoint_every;
  const int64_t written = every > 0 ? (planned.run.steps + every - 1) / every : 1;
  const auto at_once = [&](int64_t kept, int64_t more) { return kept > 0 ? std::min(written, kept + more) : written; };
  disk.checkpoints = at_once(planned.checkpoints_kept, plan.experts > 1 ? 3 : 2);

  const Exported& exported = planned.exported;
  disk.export_bytes = parameters(planned, exported.adapters) * size_of(DType::f32) * plan.experts * exported.files;
  disk.models = plan.states.ema ? 2 : 1;
  if (exported.each_save) disk.exports = at_once(exported.kept, 2);
  if (exported.each_save && exported.adapters) disk.beside_bytes = disk.export_bytes;
  return disk;
}

std::string RunDisk::text() const {
  return std::to_string(checkpoints) + (checkpoints == 1 ? " checkpoint of " : " checkpoints of ") +
         format_bytes(checkpoint_bytes + beside_bytes) + ", " +
         (exports > 0 ? std::to_string(exports) + (exports == 1 ? " export" : " exports") +
                            (models > 1 ? ", model and model_ema" : " and model")
                      : std::string(models > 1 ? "model and model_ema" : "model")) +
         " of " + format_bytes(export_bytes) + (exports + models > 1 ? " each" : "");
}

void check_disk(const Planned& planned, const fs::path& out, const std::vector<fs::path>& beyond) {
  std::error_code failed;
  const fs::space_info space = fs::space(fs::exists(out) ? out : fs::current_path(), failed);
  if (failed) return;  // the file system does not report free space
  const RunDisk disk = run_disk(planned);
  int64_t replaced = 0;
  for (const char* folder : {"checkpoints", checkpoint::kExports, "model", "model_ema"})
    replaced += bytes_below(out / folder);
  for (const fs::path& left : beyond) replaced -= bytes_below(left);
  const int64_t need = disk.bytes() - replaced, free = static_cast<int64_t>(space.available);
  if (need <= free) return;
  throw UserError(
      Exit::disk, "run.out",
      out.string() + ": " + disk.text() + " need " + format_bytes(need) + (replaced > 0 ? " more than is there" : "") +
          ", " + format_bytes(free) + " are free" +
          (beyond.empty() ? ""
                          : "; " + std::to_string(beyond.size()) +
                                " checkpoints and exports beyond run.resume stay, in abandoned-N"),
      "free space, set run.out to another disk, checkpoint.keep to fewer or checkpoint.every to more steps" +
          std::string(disk.exports > 0 ? ", checkpoint.keep_exports to fewer, or checkpoint.export to none" : ""));
}

void check_own_folder(const std::filesystem::path& out) {
  if (std::filesystem::exists(out / "recipe.toml") && !std::filesystem::exists(out / "plan.json"))
    throw UserError(Exit::usage, "run.out",
                    out.string() + " holds a recipe.toml that no run wrote, and the run would write over it",
                    "give the run a folder of its own, for instance runs/first");
}

}  // namespace tessera::planning
