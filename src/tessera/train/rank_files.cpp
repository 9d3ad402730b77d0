#include "tessera/train/rank_files.h"

#include <algorithm>
#include <fstream>

#include "tessera/checkpoint/file.h"

namespace tessera::train {

namespace fs = std::filesystem;

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
