#pragma once
// What this machine, or the container that a launcher runs in, can hold; and whom its kernel ended for want of memory.
//
//   require_room(8);                                    // before ranks are forked
//   const MemoryKills kills;
//   if (kills.any()) says("the kernel ended it for want of memory" + kills.limit());
#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::comm {

/// Throws UserError (usage) where so many ranks cannot run here, with how many can and by what: the memory that is
/// available, and the processes and threads of the kernel, the user (ulimit -u) and the container.
void require_room(int ranks);

/// The kernel's count of processes that it ended for want of memory: those of this process's cgroup (memory.events, or
/// memory.oom_control of version 1), or those of the machine where no cgroup is to be seen.
class MemoryKills {
 public:
  /// Counts from now on. Tests give another root than "/".
  explicit MemoryKills(std::filesystem::path root = "/");
  bool any() const { return count() > before_; }
  /// "; its cgroup has a limit of 2.00 GiB"; empty where there is none.
  std::string limit() const;

 private:
  int64_t count() const;

  const std::filesystem::path root_;
  std::filesystem::path folder_;  // of the cgroup; empty: not to be seen
  const int64_t before_;
};

}  // namespace tessera::comm
