#pragma once
// A cgroup of a test's own with a limit of memory, in which the kernel's memory killer chooses among its processes alone.
//
//   const SmallMemory memory(int64_t{400} << 20);
//   if (!memory.made()) GTEST_SKIP();
//   run_program({"/bin/sh", "-c", "echo $$ > " + memory.procs() + " && exec ..."});
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "processes.h"

namespace tessera::testing {

class SmallMemory {
 public:
  explicit SmallMemory(int64_t bytes) {
    namespace fs = std::filesystem;
    const std::string name = "tessera-" + std::to_string(getpid());
    for (const auto& [folder, file] : {std::pair(fs::path("/sys/fs/cgroup/memory") / name, "memory.limit_in_bytes"),
                                       {fs::path("/sys/fs/cgroup") / name, "memory.max"}}) {
      std::error_code refused;
      if (!fs::create_directory(folder, refused)) continue;
      folder_ = folder;
      std::ofstream(folder / "memory.swap.max") << 0;
      std::ofstream limit(folder / file);
      limit << bytes << std::flush;
      made_ = fs::exists(folder / file) && limit.good();
      break;
    }
  }
  ~SmallMemory() {
    for (int i = 0; i < 100 && !folder_.empty() && rmdir(folder_.c_str()) != 0; ++i) sleep_seconds(0.02);
  }
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

  bool made() const { return made_; }
  /// Whoever writes its number there belongs to it.
  std::string procs() const { return (folder_ / "cgroup.procs").string(); }

 private:
  std::filesystem::path folder_;
  bool made_ = false;
};

}  // namespace tessera::testing
