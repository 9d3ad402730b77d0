#include "tessera/train/rank_files.h"

#include <filesystem>
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

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

}  // namespace tessera::train
