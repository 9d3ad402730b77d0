#include "tessera/checkpoint/resume.h"

#include <sys/stat.h>

#include <cstdio>

#include "tessera/base/check.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

/// As manifests keep it: within the run relative to it, so that a run may be moved.
std::string name_of(const Path& folder, const Path& run) {
  const Path there = fs::weakly_canonical(fs::absolute(folder)) / "",
             here = fs::weakly_canonical(fs::absolute(run)) / "";
  const Path inside = there.lexically_relative(here);
  const bool outside = inside.empty() || *inside.begin() == "..";
  return (outside ? there : inside).parent_path().string();
}

std::string line_of(const Manifest& manifest) {
  const auto found = manifest.extra.find(kResumedFrom);
  return found != manifest.extra.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Whether a checkpoint was saved at `time`, in seconds since 1970, or later.
bool saved_since(const Path& checkpoint, double time) {
  struct stat manifest {};
  if (stat((checkpoint / "manifest.json").c_str(), &manifest) != 0) return false;
  return static_cast<double>(manifest.st_mtim.tv_sec) + 1e-9 * static_cast<double>(manifest.st_mtim.tv_nsec) >= time;
}

/// Whole checkpoints of later steps.
std::vector<Path> behind(const Path& checkpoints, int64_t step) {
  std::vector<Path> found;
  for (const Path& whole : whole_checkpoints(checkpoints))
    if (step_of(whole.filename().string()) > step) found.push_back(whole);
  return found;
}

}  // namespace

bool has_gone_on(const std::string& asked, const Path& run) {
  const std::vector<Path> whole = whole_checkpoints(run / "checkpoints");
  for (auto newest = whole.rbegin(); newest != whole.rend(); ++newest) {
    try {
      return line_of(load_manifest(*newest)) == name_of(asked, run);
    } catch (const UserError&) {  // damaged: the one before it tells which line this is
    }
  }
  return false;
}

Resume choose_resume(const std::string& asked, const Path& run, std::optional<double> launched, bool diverged) {
  const Path checkpoints = run / "checkpoints";
  const std::optional<Path> newest = latest(checkpoints);
  if (asked == "no" && !(launched && newest && saved_since(*newest, *launched)))
    return {std::nullopt, whole_checkpoints(checkpoints), "", false};
  const bool named = asked != "no" && asked != "auto";
  std::error_code none;
  const bool own =
      named && fs::exists(Path(asked) / "manifest.json", none) && fs::equivalent(Path(asked) / "..", checkpoints, none);
  const bool gone_on = named && !(diverged && own) && has_gone_on(asked, run);
  if (diverged && (!named || gone_on)) {
    const std::optional<Path> proved = newest_proved(checkpoints);
    return {proved, behind(checkpoints, proved ? load_manifest(*proved).step : -1),
            proved ? line_of(load_manifest(*proved)) : "", gone_on, /*back=*/true};
  }
  if (!named) return {newest, {}, newest ? line_of(load_manifest(*newest)) : "", false};
  if (gone_on) return {newest, {}, name_of(asked, run), /*gone_on=*/true};
  // What begins elsewhere and diverged before its first checkpoint would do so again.
  return {Path(asked), behind(checkpoints, load_manifest(asked).step), name_of(asked, run), false, diverged && !own};
}

std::string describe(const Resume& resume) {
  if (!resume.from) return "none";
  const std::string text = read_text(*resume.from / "manifest.json");
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x", crc32c(text.data(), text.size()));
  return resume.from->string() + " (manifest.json " + sum + ")";
}

bool is_trainer_folder(const std::filesystem::path& folder) {
  std::error_code none;
  return std::filesystem::is_regular_file(folder / "running_states.json", none);
}

}  // namespace tessera::checkpoint
