#include "tessera/train/abandon.h"

#include <sstream>
#include <vector>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

/// Lines of metrics.jsonl, up to step `after` and behind it.
struct Lines {
  std::string kept, left;
};

Lines lines_of(const fs::path& file, int64_t after) {
  Lines lines;
  if (!fs::exists(file)) return lines;
  std::istringstream in(checkpoint::read_text(file));
  for (std::string line; std::getline(in, line);) {
    const auto json = checkpoint::Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // a half-written last line is what a crash leaves
    (json.value("step", int64_t{0}) <= after ? lines.kept : lines.left) += line + "\n";
  }
  return lines;
}

}  // namespace

fs::path free_name(const fs::path& folder, const std::string& begin, const std::string& ending) {
  for (int n = 1;; ++n)
    if (fs::path name = folder / (begin + std::to_string(n) + ending); !fs::exists(name)) return name;
}

std::optional<fs::path> move_to_abandoned(const fs::path& out, int64_t after) {
  std::vector<fs::path> going;
  for (const fs::path& folder : checkpoint::whole_checkpoints(out / "checkpoints"))
    if (checkpoint::load_manifest(folder).step > after) going.push_back(folder);
  const fs::path metrics = out / "metrics.jsonl";
  const Lines lines = lines_of(metrics, after);
  if (going.empty() && lines.left.empty()) return std::nullopt;
  const fs::path folder = free_name(out, "abandoned-");
  checkpoint::make_folder(folder / "checkpoints", "check run.out");
  if (!lines.left.empty()) {
    checkpoint::write_text(folder / metrics.filename(), lines.left);
    checkpoint::write_text(metrics, lines.kept);
  }
  for (const fs::path& from : going) checkpoint::publish(from, folder / "checkpoints" / from.filename());
  return folder;
}

}  // namespace tessera::train
