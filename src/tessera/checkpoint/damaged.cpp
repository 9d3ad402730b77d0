#include "tessera/checkpoint/damaged.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

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
