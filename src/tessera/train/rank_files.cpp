#include "tessera/train/rank_files.h"

#include <fstream>

#include "tessera/base/check.h"

namespace tessera::train {

void join_rank_files(const std::string& file, int world) {
  std::ofstream out(file, std::ios::trunc | std::ios::binary);
  for (int r = 0; r < world; ++r) {
    const std::string part = file + ".rank-" + std::to_string(r);
    std::ifstream in(part, std::ios::binary);
    if (in.peek() != std::ifstream::traits_type::eof()) out << in.rdbuf();
    in.close();
    std::filesystem::remove(part);
  }
  out.flush();
  if (!out)
    throw UserError(Exit::disk, "train.trace", file + ": cannot be written", "free space or choose another file");
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
