#include "tessera/checkpoint/folders.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tessera/base/check.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-", kPartial = ".partial";

[[noreturn]] void fail(const Path& path, const std::string& act, const std::string& reason) {
  throw UserError(Exit::disk, "checkpoint.folder", path.string() + ": cannot " + act + ": " + reason,
                  "check that disk and its permissions");
}

/// The step of a folder name "step-NNNNNN", or -1.
int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  std::string digits = name.substr(kPrefix.size());
  bool ok = !digits.empty() && digits.size() < 19 && digits.find_first_not_of("0123456789") == std::string::npos;
  return ok ? std::stoll(digits) : -1;
}

void remove_tree(const Path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(path, "remove", error.message());
}

void rename_entry(const Path& from, const Path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "rename to " + to.filename().string(), std::strerror(errno));
}

std::vector<Path> entries(const Path& folder) {
  std::vector<Path> result;
  std::error_code error;
  if (!fs::exists(folder, error)) return result;
  for (const auto& item : fs::directory_iterator(folder, error)) result.push_back(item.path());
  if (error) fail(folder, "list", error.message());
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

Path step_folder(const Path& checkpoints, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return checkpoints / name;
}

Path partial_folder(const Path& checkpoints, int64_t step) { return step_folder(checkpoints, step) += kPartial; }

std::vector<Path> whole_checkpoints(const Path& checkpoints) {
  std::vector<std::pair<int64_t, Path>> found;
  for (const Path& path : entries(checkpoints)) {
    int64_t step = step_of(path.filename().string());
    if (step >= 0 && fs::exists(path / "manifest.json")) found.emplace_back(step, path);
  }
  std::sort(found.begin(), found.end());  // by number: step-1000000 comes after step-999999
  std::vector<Path> result;
  for (auto& [step, path] : found) result.push_back(std::move(path));
  return result;
}

std::optional<Path> latest(const Path& checkpoints) {
  std::vector<Path> whole = whole_checkpoints(checkpoints);
  return whole.empty() ? std::nullopt : std::optional<Path>(whole.back());
}

std::vector<std::string> clean_partials(const Path& checkpoints) {
  std::vector<std::string> removed;
  for (const Path& path : entries(checkpoints)) {
    std::string name = path.filename().string();
    if (!name.ends_with(kPartial) && (step_of(name) < 0 || fs::exists(path / "manifest.json"))) continue;
    remove_tree(path);
    removed.push_back(name);
  }
  return removed;
}

std::vector<std::string> prune(const Path& checkpoints, int64_t keep) {
  std::vector<std::string> removed;
  std::vector<Path> whole = whole_checkpoints(checkpoints);
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < whole.size(); ++i) {
    Path going = whole[i];
    going += kPartial;
    remove_tree(going);
    rename_entry(whole[i], going);  // see [Note: whole or absent]
    sync_folder(checkpoints);
    remove_tree(going);
    removed.push_back(whole[i].filename().string());
  }
  return removed;
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
      fail(partial, "exchange with " + final.filename().string(), std::strerror(errno));
    Path old = final;  // a file system without exchange: older checkpoints bridge the instant between the renames
    old += ".old";
    old += kPartial;
    remove_tree(old);
    rename_entry(final, old);
    rename_entry(partial, final);
    sync_folder(final.parent_path());
    remove_tree(old);
    return;
  }
  sync_folder(final.parent_path());
  remove_tree(partial);
}

}  // namespace tessera::checkpoint
