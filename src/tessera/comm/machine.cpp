#include "tessera/comm/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/units.h"

namespace tessera::comm {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
// The least that a rank takes, so that no number is refused that would have run: it has 11 MiB to itself before a model is
// built ([Note: ranks are forked]), and these threads of a step beside its own.
constexpr int64_t kRankBytes = int64_t{11} << 20;
constexpr int64_t kRankThreads = 2;

/// The number behind a word that begins a line of the file, or the first one in it for an empty word; `absent` where there
/// is none ("max").
int64_t number_in(const fs::path& file, const std::string& word, int64_t absent) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    int64_t number = 0;
    if ((word.empty() || ((words >> first) && first == word)) && (words >> number)) return number;
  }
  return absent;
}

/// The folder in which this process's cgroup of a controller shows itself: that of version 2, or the controller's own of
/// version 1. In a container the mounted tree may begin at the cgroup, whatever its path is.
fs::path cgroup_folder(const fs::path& root, const std::string& controller, const std::string& file_of_1,
                       const std::string& file_of_2) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool unified = names.empty(), named = ("," + names + ",").find("," + controller + ",") != std::string::npos;
    if (!unified && !named) continue;
    for (fs::path path = line.substr(second + 1);; path = path.parent_path()) {
      fs::path folder = root / "sys/fs/cgroup";
      if (!unified) folder /= controller;
      folder /= path.relative_path();
      std::error_code none;
      if (fs::exists(folder / (unified ? file_of_2 : file_of_1), none)) return folder;
      if (!path.has_relative_path()) break;
    }
  }
  return {};
}

/// Kept by the kernel for the least of what stands here.
struct Limit {
  int64_t ranks;
  std::string by;
};

Limit by_memory() {
  const int64_t bytes = number_in("/proc/meminfo", "MemAvailable:", kNoLimit >> 10) * 1024;
  Limit found{bytes / kRankBytes, format_bytes(bytes) + " of memory are available"};
  const fs::path cgroup = cgroup_folder("/", "memory", "memory.limit_in_bytes", "memory.max");
  if (cgroup.empty()) return found;
  const int64_t most = std::min(number_in(cgroup / "memory.max", "", kNoLimit),
                                number_in(cgroup / "memory.limit_in_bytes", "", kNoLimit));
  if (most / kRankBytes < found.ranks)
    found = {most / kRankBytes, "its container has " + format_bytes(most) + " of memory"};
  return found;
}

Limit by_threads() {
  Limit least{kNoLimit, ""};
  const auto take = [&](int64_t threads, const std::string& by) {
    if (threads < kNoLimit && threads / kRankThreads < least.ranks)
      least = {threads / kRankThreads, std::to_string(threads) + " " + by};
  };
  take(number_in("/proc/sys/kernel/pid_max", "", kNoLimit),
       "processes and threads are the kernel's most (kernel.pid_max)");
  take(number_in("/proc/sys/kernel/threads-max", "", kNoLimit), "threads are the kernel's most (kernel.threads-max)");
  const fs::path cgroup = cgroup_folder("/", "pids", "pids.max", "pids.max");
  if (!cgroup.empty())
    take(number_in(cgroup / "pids.max", "", kNoLimit), "processes and threads are its container's most (pids.max)");
  rlimit user{};
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &user) == 0 && user.rlim_cur != RLIM_INFINITY)
    take(static_cast<int64_t>(user.rlim_cur), "processes and threads are this user's most (ulimit -u)");
  return least;
}

}  // namespace

void require_room(int ranks) {
  for (const Limit& limit : {by_memory(), by_threads()})
    if (ranks > limit.ranks)
      throw UserError(Exit::usage, "launch",
                      "-n " + std::to_string(ranks) + ": this machine can hold " + std::to_string(limit.ranks) +
                          " ranks at the very most: " + limit.by,
                      "-n is the number of ranks on this machine alone; --nnodes K runs them on K machines");
}

MemoryKills::MemoryKills(fs::path root)
    : root_(std::move(root)),
      folder_(cgroup_folder(root_, "memory", "memory.oom_control", "memory.events")),
      before_(count()) {}

int64_t MemoryKills::count() const {
  if (folder_.empty()) return number_in(root_ / "proc/vmstat", "oom_kill", 0);
  const int64_t events = number_in(folder_ / "memory.events", "oom_kill", -1);
  return events >= 0 ? events : number_in(folder_ / "memory.oom_control", "oom_kill", 0);
}

std::string MemoryKills::limit() const {
  if (folder_.empty()) return "";
  const int64_t bytes = std::min(number_in(folder_ / "memory.max", "", kNoLimit),
                                 number_in(folder_ / "memory.limit_in_bytes", "", kNoLimit));
  constexpr int64_t kUnlimited = int64_t{1} << 60;  // version 1 has a number of pages for none
  return bytes >= kUnlimited ? "" : "; its cgroup has a limit of " + format_bytes(bytes);
}

namespace {

/// The number that a file of the processor's topology begins with; -1: there is none.
int topology(int processor, const std::string& file) {
  int number = -1;
  std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/" + file) >> number;
  return number;
}

}  // namespace

std::vector<int> own_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<std::tuple<int, int, int>> sorted;  // by package, first thread of the core, number
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed))
      sorted.emplace_back(topology(i, "physical_package_id"), topology(i, "thread_siblings_list"), i);
  std::ranges::sort(sorted);
  std::vector<int> processors;
  for (const auto& entry : sorted) processors.push_back(std::get<2>(entry));
  return processors;
}

std::vector<int> share_of(const std::vector<int>& processors, int local, int ranks) {
  const auto count = static_cast<int>(processors.size());
  if (count < ranks) return {};
  return {processors.begin() + local * count / ranks, processors.begin() + (local + 1) * count / ranks};
}

}  // namespace tessera::comm
