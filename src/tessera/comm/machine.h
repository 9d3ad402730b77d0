#pragma once
// What this machine, or the container that a launcher runs in, can hold; whom its kernel ended for want of memory; and
// which processors each rank has.
//
//   require_room(8);                                    // before ranks are forked
//   const MemoryKills kills;
//   if (kills.any()) says("the kernel ended it for want of memory" + kills.limit());
//   share_of(own_processors(), 1, 2)                    // the second of two ranks, on eight processors: {4, 5, 6, 7}
//
// [Note: bound ranks]
// Ranks that compute on processors are bound to equal shares of them. Where the kernel places their threads, those of two
// ranks meet on one processor while another one idles, until it balances them a tick later, and the other rank waits for
// that in the next collective: steps of 64 plans on two cores took 6 % longer in the median, and spread twice as far.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

/// Those that this process may run on, threads of one core and cores of one package side by side. Empty: not known.
std::vector<int> own_processors();

/// The share of rank `local` of `ranks` on this machine; empty: there are fewer processors than ranks.
std::vector<int> share_of(const std::vector<int>& processors, int local, int ranks);

}  // namespace tessera::comm
