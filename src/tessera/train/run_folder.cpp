#include "tessera/train/run_folder.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/report/history.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kUnderWay = "abandoned.partial";  // until all is in it

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw UserError(Exit::disk, "run.resume",
                    from.string() + ": cannot be moved to " + to.string() + ": " + error.message(),
                    "see to its permissions, or begin the new line in another run.out");
  checkpoint::sync_folder(to.parent_path());
  checkpoint::sync_folder(from.parent_path());
}

fs::path next_name(const fs::path& run) {
  for (int n = 1;; ++n)
    if (const fs::path name = run / ("abandoned-" + std::to_string(n)); !fs::exists(name)) return name;
}

/// The lines of metrics.jsonl that the run is going to cut off.
void copy_lines(const fs::path& run, int64_t step, const fs::path& to) {
  const fs::path file = run / "metrics.jsonl";
  const report::History history = report::read_history(file, step);
  const int64_t bytes = history.bytes - history.kept;
  if (bytes == 0) return;
  const checkpoint::ReadFile in(file);
  checkpoint::DurableFile out(to / "metrics.jsonl", bytes);
  std::vector<char> piece(size_t{1} << 20);
  for (int64_t at = history.kept; at < history.bytes;) {
    const int64_t count = std::min<int64_t>(history.bytes - at, static_cast<int64_t>(piece.size()));
    in.read(at, count, piece.data());
    out.write(piece.data(), count);
    at += count;
  }
  out.commit();
}

}  // namespace

void leave_behind(const fs::path& run, int64_t step, const std::vector<fs::path>& beyond) {
  const fs::path under_way = run / kUnderWay;
  const std::vector<fs::path> exports = checkpoint::exports_behind(run, step);
  if (beyond.empty() && exports.empty() && !fs::exists(under_way)) return;
  const fs::path to = next_name(run);
  if (!exports.empty()) {
    const fs::path there = under_way / checkpoint::kExports;
    checkpoint::make_folder(there, "check run.out");
    for (const fs::path& left : exports) move(left, there / left.filename());
  }
  if (!beyond.empty()) {
    checkpoint::make_folder(under_way / "checkpoints", "check run.out");
    copy_lines(run, step, under_way);
    // The newest first: until the last has gone, the next start sees that this is not done.
    for (auto left = beyond.rbegin(); left != beyond.rend(); ++left)
      move(*left, under_way / "checkpoints" / left->filename());
  }
  checkpoint::remove_dead_partials(under_way);
  move(under_way, to);
  log::warn("going back to step " + std::to_string(step) + ": " + std::to_string(beyond.size()) + " checkpoints and " +
            std::to_string(exports.size()) + " exports beyond it, and their lines of metrics.jsonl, are in " +
            to.string() + " now; delete it when it is not needed");
}

void join_rank_files(const std::string& file, int world) {
  const auto part = [&](int rank) { return fs::path(file + ".rank-" + std::to_string(rank)); };
  int64_t bytes = 0;
  std::error_code absent;
  for (int r = 0; r < world; ++r)
    if (fs::is_regular_file(part(r), absent)) bytes += static_cast<int64_t>(fs::file_size(part(r)));
  checkpoint::DurableFile out(file, bytes);
  std::vector<char> piece(size_t{1} << 20);
  for (int r = 0; r < world; ++r) {
    if (!fs::is_regular_file(part(r), absent)) continue;
    const checkpoint::ReadFile in(part(r));
    for (int64_t at = 0; at < in.size();) {
      const int64_t count = std::min<int64_t>(in.size() - at, static_cast<int64_t>(piece.size()));
      in.read(at, count, piece.data());
      out.write(piece.data(), count);
      at += count;
    }
  }
  out.commit();
  for (int r = 0; r < world; ++r) fs::remove(part(r), absent);
}

void remove_rank_files(const std::filesystem::path& file) {
  const std::string begin = file.filename().string() + ".rank-";
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), gone))
    if (entry.path().filename().string().starts_with(begin)) std::filesystem::remove(entry.path(), gone);
}

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

}  // namespace tessera::train
