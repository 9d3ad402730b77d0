#include "tessera/planning/disk_need.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/units.h"

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

}  // namespace

int64_t checkpoint_bytes(const Planned& planned) {
  const plan::Plan& plan = planned.plan();
  const plan::StatesOf states = plan::states_of(plan.states);
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : planned.spec.units)
    for (const plan::ParamSpec& param : unit.params) {
      if (!param.trainable) continue;
      bytes += param.numel() * plan::master_bytes(plan.states.masters);
      for (const plan::StateSpec& state : states(param)) bytes += state.values(0, param.numel()) * size_of(state.type);
    }
  return bytes * plan.experts;
}

int64_t checkpoints_on_disk(const Planned& planned) {
  const int64_t every = planned.run.checkpoint_every;
  const int64_t written = every > 0 ? (planned.run.steps + every - 1) / every : 1;
  return planned.checkpoints_kept > 0 ? std::min<int64_t>(written, planned.checkpoints_kept + 2) : written;
}

int64_t export_bytes(const Planned& planned, const recipe::Recipe::Lora& lora) {
  int64_t values = 0;
  for (const plan::UnitSpec& unit : planned.spec.units)
    for (const plan::ParamSpec& param : unit.params)
      if (!lora.on || param.trainable) values += param.numel();
  std::set<std::string> namings(lora.exports.begin(), lora.exports.end());
  namings.insert("diffusers");  // which the others are made from
  return values * size_of(DType::f32) * planned.plan().experts * (lora.on ? static_cast<int64_t>(namings.size()) : 1);
}

void check_disk(const Planned& planned, const recipe::Recipe& recipe, const fs::path& out,
                const std::vector<fs::path>& beyond) {
  std::error_code failed;
  const fs::space_info space = fs::space(fs::exists(out) ? out : fs::current_path(), failed);
  if (failed) return;  // the file system does not report free space
  const int64_t count = checkpoints_on_disk(planned), each = checkpoint_bytes(planned);
  const std::string& wanted = recipe.values.at("checkpoint.export");
  const bool beside = wanted == "model" || (wanted == "lora" && recipe.lora.on);
  const int64_t exported = export_bytes(planned, recipe.lora);
  const int64_t models = planned.plan().states.ema ? 2 : 1;
  int64_t replaced = 0;
  for (const char* folder : {"checkpoints", "model", "model_ema"}) replaced += bytes_below(out / folder);
  for (const fs::path& left : beyond) replaced -= bytes_below(left);
  const int64_t need = count * (each + (beside ? exported : 0)) + models * exported - replaced,
                free = static_cast<int64_t>(space.available);
  if (need <= free) return;
  throw UserError(
      Exit::disk, "run.out",
      out.string() + ": " + std::to_string(count) + " checkpoints of " + format_bytes(each) +
          (beside ? " with an export of " + format_bytes(exported) + " in each" : "") + ", and model" +
          (models > 1 ? " and model_ema" : "") + " of " + format_bytes(exported) + (models > 1 ? " each" : "") +
          ", need " + format_bytes(need) + (replaced > 0 ? " more than is there" : "") + ", " + format_bytes(free) +
          " are free" +
          (beyond.empty()
               ? ""
               : "; " + std::to_string(beyond.size()) + " checkpoints beyond run.resume stay, in abandoned-N"),
      "free space, set run.out to another disk, checkpoint.keep to fewer or checkpoint.every to more steps" +
          std::string(beside ? ", or checkpoint.export to none" : ""));
}

void check_own_folder(const std::filesystem::path& out) {
  if (std::filesystem::exists(out / "recipe.toml") && !std::filesystem::exists(out / "plan.json"))
    throw UserError(Exit::usage, "run.out",
                    out.string() + " holds a recipe.toml that no run wrote, and the run would write over it",
                    "give the run a folder of its own, for instance runs/first");
}

}  // namespace tessera::planning
