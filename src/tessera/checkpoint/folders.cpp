#include "tessera/checkpoint/folders.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "tessera/base/check.h"
#include "tessera/base/log.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-", kPartial = ".partial", kOld = ".old";

[[noreturn]] void fail_at(const Path& path, const std::string& act, const std::string& reason) {
  throw UserError(Exit::disk, "checkpoint.folder", path.string() + ": cannot " + act + ": " + reason,
                  "check that disk and its permissions");
}

/// The step of what saving or pruning left behind ("step-000100.partial", "step-000100.old.partial"), or -1.
int64_t step_of_remains(std::string name) {
  if (!name.ends_with(kPartial)) return -1;
  name.resize(name.size() - kPartial.size());
  if (name.ends_with(kOld)) name.resize(name.size() - kOld.size());
  return step_of(name);
}

/// The manifest goes first: what has one is whole, whatever it is called. Of a link the link goes, and not what it leads
/// to. Returns why it could not be removed.
std::string remove_checkpoint(const Path& path) {
  std::error_code error;
  try {
    if (!fs::is_symlink(path, error) && fs::remove(path / "manifest.json", error)) sync_folder(path);
  } catch (const UserError& failed) {
    return failed.what();
  }
  if (!error) fs::remove_all(path, error);
  return error ? path.string() + ": cannot be removed: " + error.message() : "";
}

bool is_whole(const Path& path) {
  std::error_code error;
  return fs::exists(path / "manifest.json", error);
}

void warn(const std::string& problem) {
  if (!problem.empty()) log::warn(problem + "; it only takes up disk space");
}

void rename_entry(const Path& from, const Path& to) {
  int error = 0;
  do error = ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  while (error == EINTR);
  std::error_code none;  // NFS asks again where an answer was lost, and is told that `from` is gone
  const bool was_done = error == ENOENT && !fs::exists(from, none) && fs::exists(to, none);
  errno = error;
  if (error != 0 && !was_done) fail_at(from, "rename to " + to.filename().string(), std::strerror(errno));
}

std::vector<Path> entries(const Path& folder) {
  std::vector<Path> result;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return result;
  for (const auto& item : fs::directory_iterator(folder, error)) result.push_back(item.path());
  if (error) fail_at(folder, "list", error.message());
  std::sort(result.begin(), result.end());
  return result;
}

/// Folders that are named as step_folder() does it, oldest first.
std::vector<Path> step_folders(const Path& folder, bool (*is)(const Path&)) {
  std::vector<std::pair<int64_t, Path>> found;
  for (const Path& path : entries(folder))
    if (const int64_t step = step_of(path.filename().string()); step >= 0 && is(path)) found.emplace_back(step, path);
  std::sort(found.begin(), found.end());  // by number: step-1000000 comes after step-999999
  std::vector<Path> result;
  for (auto& [step, path] : found) result.push_back(std::move(path));
  return result;
}

/// Removes all of these but the newest `keep`, `besides` and `more`; returns the names of those that are gone.
std::vector<std::string> remove_all_but(const std::vector<Path>& folders, int64_t keep,
                                        const std::vector<Path>& besides, const Retention& more) {
  std::vector<std::string> removed;
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < folders.size(); ++i) {
    const Path& folder = folders[i];
    if (std::ranges::find(besides, folder) != besides.end()) continue;
    const int64_t step = step_of(folder.filename().string()), newest = step_of(folders.back().filename().string());
    if (more.best.contains(step) || (more.steps > 0 && step >= newest - more.steps)) continue;
    Path going = folder;
    going += kPartial;
    std::string problem = fs::exists(going) ? remove_checkpoint(going) : "";
    if (problem.empty() && ::rename(folder.c_str(), going.c_str()) != 0)  // see [Note: whole or absent]
      problem = folder.string() + ": cannot be renamed to " + going.filename().string() + ": " + std::strerror(errno);
    if (problem.empty()) sync_folder(folder.parent_path()), problem = remove_checkpoint(going);
    warn(problem);
    if (problem.empty()) removed.push_back(folder.filename().string());
  }
  return removed;
}

bool is_folder(const Path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

}  // namespace

Path step_folder(const Path& checkpoints, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return checkpoints / name;
}

// A user's own `step-77` is none.
int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  const std::string digits = name.substr(kPrefix.size());
  const bool ok = !digits.empty() && digits.size() < 19 && digits.find_first_not_of("0123456789") == std::string::npos;
  const int64_t step = ok ? std::stoll(digits) : -1;
  return ok && step_folder({}, step) == name ? step : -1;
}

Path partial_folder(const Path& checkpoints, int64_t step) { return step_folder(checkpoints, step) += kPartial; }

std::vector<Path> whole_checkpoints(const Path& checkpoints) { return step_folders(checkpoints, is_whole); }

std::optional<Path> latest(const Path& checkpoints) {
  std::vector<Path> whole = whole_checkpoints(checkpoints);
  return whole.empty() ? std::nullopt : std::optional<Path>(whole.back());
}

bool is_proved(const Path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / kProved, error);
}

void prove(const Path& checkpoint) {
  if (!is_proved(checkpoint)) write_text(checkpoint / kProved, "");
}

std::optional<Path> newest_proved(const Path& checkpoints) {
  const std::vector<Path> whole = whole_checkpoints(checkpoints);
  const auto found = std::find_if(whole.rbegin(), whole.rend(), is_proved);
  return found == whole.rend() ? std::nullopt : std::optional<Path>(*found);
}

std::vector<std::string> clean_partials(const Path& checkpoints) {
  std::vector<std::string> removed;
  for (const Path& path : entries(checkpoints)) {
    const std::string name = path.filename().string();
    const int64_t step = step_of_remains(name);
    if (step < 0) continue;
    if (const Path final = step_folder(checkpoints, step);
        name.ends_with(std::string(kOld) + std::string(kPartial)) && !fs::exists(final) && is_whole(path)) {
      rename_entry(path, final);  // publish() was killed between its renames
      continue;
    }
    const std::string problem = remove_checkpoint(path);
    warn(problem);
    if (problem.empty()) removed.push_back(name);
  }
  return removed;
}

std::vector<std::string> prune(const Path& checkpoints, int64_t keep, const std::optional<Path>& besides,
                               const Retention& more) {
  std::vector<Path> stay;
  for (const auto& one : {newest_proved(checkpoints), besides})
    if (one) stay.push_back(*one);
  return remove_all_but(whole_checkpoints(checkpoints), keep, stay, more);
}

std::vector<Path> saves_in(const Path& folder) { return step_folders(folder, is_folder); }

std::vector<Path> exports_behind(const Path& run, int64_t step) {
  std::vector<Path> found = step_folders(run / kExports, is_folder);
  std::erase_if(found, [&](const Path& path) { return step_of(path.filename().string()) <= step; });
  return found;
}

void prune_exports(const Path& exports, int64_t keep, const std::optional<Path>& besides, const Retention& more) {
  std::vector<Path> stay;
  if (besides) stay.push_back(exports / besides->filename());
  remove_all_but(step_folders(exports, is_folder), keep, stay, more);
}

void publish(const Path& partial, const Path& final) {
  if (!fs::exists(final)) {
    rename_entry(partial, final);
    sync_folder(final.parent_path());
    return;
  }
  // A step may be saved twice (a signal right after a regular save). The exchange leaves no instant without it.
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS)
      fail_at(partial, "exchange with " + final.filename().string(), std::strerror(errno));
    Path old = final;  // a file system without exchange: clean_partials() mends what a kill leaves between the renames
    old += kOld;
    old += kPartial;
    warn(fs::exists(old) ? remove_checkpoint(old) : "");
    rename_entry(final, old);
    rename_entry(partial, final);
    sync_folder(final.parent_path());
    warn(remove_checkpoint(old));
    return;
  }
  sync_folder(final.parent_path());
  warn(remove_checkpoint(partial));
}

std::vector<Path> without_manifest(const Path& checkpoints) {
  const std::optional<Path> newest = latest(checkpoints);
  const int64_t whole = newest ? step_of(newest->filename().string()) : -1;
  std::vector<Path> found;
  std::error_code unseen;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints, unseen))
    if (step_of(entry.path().filename().string()) > whole && entry.is_directory(unseen)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

std::string earlier_than(const Path& checkpoint) {
  const Path folder = checkpoint.has_filename() ? checkpoint : checkpoint.parent_path();
  const int64_t step = step_of(folder.filename().string());
  std::optional<Path> before;
  for (const Path& whole : whole_checkpoints(folder.parent_path()))
    if (step_of(whole.filename().string()) < step) before = whole;
  return before ? "go on from the one before it: --run.resume " + before->string()
                : "no earlier one is there: copy it again, or start at step 0 with --run.resume no";
}

UserError damaged(const UserError& error, const Path& folder) {
  std::string what = error.what();  // "[where] what; hint"
  if (const size_t end = what.find("] "); what.starts_with('[') && end != what.npos) what.erase(0, end + 2);
  if (!error.hint().empty() && what.ends_with(error.hint())) what.resize(what.size() - error.hint().size());
  while (!what.empty() && (what.back() == ' ' || what.back() == ';')) what.pop_back();
  return {error.code(), "checkpoint.load", what, earlier_than(folder)};
}

}  // namespace tessera::checkpoint
