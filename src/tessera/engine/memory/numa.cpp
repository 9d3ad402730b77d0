#include "tessera/engine/memory/numa.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"

namespace tessera::engine {

namespace {

std::string line_of(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

/// Empty: no number.
std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "0-3,8" as 0, 1, 2, 3, 8; what cannot be read is left out.
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream in(list);
  for (std::string range; std::getline(in, range, ',');) {
    const size_t dash = range.find('-');
    const std::optional<int> first = number_of(std::string_view(range).substr(0, dash)),
                             last = dash == range.npos ? first : number_of(std::string_view(range).substr(dash + 1));
    if (!first || !last || *last - *first >= CPU_SETSIZE) continue;
    for (int n = *first; n <= *last; ++n) numbers.push_back(n);
  }
  return numbers;
}

/// "Node 1 MemFree:   1234 kB"; -1: no such line.
int64_t free_bytes(const std::string& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("MemFree:");
    if (at == line.npos) continue;
    int64_t kib = -1;
    std::istringstream(line.substr(at + 8)) >> kib;
    return kib < 0 ? -1 : kib * 1024;
  }
  return -1;
}

bool touch_part(void* mapped, size_t size) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(mapped, size, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // a kernel before 5.14 does not know it
#endif
  for (size_t at = 0; at < size; at += 4096) static_cast<volatile char*>(mapped)[at] = 0;
  return true;
}

}  // namespace

std::optional<NumaNode> near_node(const std::string& pci, const std::string& sysfs) {
  const std::string nodes = sysfs + "/devices/system/node/";
  const std::optional<int> number =
      pci.empty() ? std::nullopt : number_of(line_of(sysfs + "/bus/pci/devices/" + pci + "/numa_node"));
  if (!number || *number < 0 || numbers_of(line_of(nodes + "online")).size() < 2) return std::nullopt;
  const std::string own = nodes + "node" + std::to_string(*number);
  NumaNode node{.number = *number, .cpus = {}, .free = free_bytes(own + "/meminfo")};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  for (const int cpu : numbers_of(line_of(own + "/cpulist")))
    if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) node.cpus.push_back(cpu);
  if (node.cpus.empty()) return std::nullopt;
  return node;
}

int64_t this_machine() {
  const std::string boot = line_of("/proc/sys/kernel/random/boot_id");
  return static_cast<int64_t>(hash_text(boot) >> 11);
}

std::vector<std::string> beyond_nodes(const std::vector<NodeShare>& ranks) {
  struct Taken {
    int64_t free = -1, bytes = 0;
    std::vector<int> by;
  };
  std::map<std::pair<int64_t, int>, Taken> nodes;
  std::map<int64_t, int64_t> ranks_of;  // by machine
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const NodeShare& share = ranks[rank];
    ++ranks_of[share.machine];
    if (share.node < 0 || share.free < 0) continue;
    Taken& taken = nodes[{share.machine, share.node}];
    taken.free = taken.by.empty() ? share.free : std::min(taken.free, share.free);
    taken.bytes += share.bytes;
    taken.by.push_back(static_cast<int>(rank));
  }
  std::vector<std::string> found;
  for (const auto& [at, taken] : nodes) {
    if (taken.bytes <= taken.free) continue;
    const auto count = static_cast<int64_t>(taken.by.size());
    std::string text = "NUMA node " + std::to_string(at.second) + " has " + format_bytes(taken.free) +
                       " free, and the host " + (count == 1 ? "tier of rank " : "tiers of ranks ");
    for (int64_t i = 0; i < count; ++i)
      text += (i == 0 ? "" : i + 1 == count ? " and " : ", ") + std::to_string(taken.by[static_cast<size_t>(i)]);
    const int64_t budget = taken.free / count * ranks_of[at.first];  // of a machine, which its ranks share alike
    found.push_back(text + ", whose " + (count == 1 ? "GPU hangs on it, takes " : "GPUs hang on it, take ") +
                    format_bytes(taken.bytes) + ": " + format_bytes(taken.bytes - taken.free) +
                    " will lie on other nodes, and their copies cross the link between the sockets; lower "
                    "plan.host_budget to " +
                    format_bytes(budget) + ", or end what uses that node's memory (numactl -H)");
  }
  return found;
}

void on_cpus(const std::vector<int>& cpus, int threads, const std::function<void(int)>& task) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  std::vector<std::jthread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&task, &set, t] {
      sched_setaffinity(0, sizeof set, &set);  // refused: it runs where it may
      task(t);
    });
}

bool touch_pages(void* mapped, size_t size, const std::vector<int>& cpus) {
  madvise(mapped, size, MADV_HUGEPAGE);
  constexpr int64_t kOfThread = int64_t{64} << 20, kHugePage = int64_t{2} << 20, kMostThreads = 8;
  const auto bytes = static_cast<int64_t>(size);
  const int64_t threads = std::min({kMostThreads, static_cast<int64_t>(cpus.size()), div_up(bytes, kOfThread)});
  if (threads == 0) return touch_part(mapped, size);
  const int64_t part = round_up(div_up(bytes, threads), kHugePage);
  std::atomic<bool> whole = true;
  on_cpus(cpus, static_cast<int>(threads), [&](int thread) {
    const int64_t begin = std::min(bytes, thread * part), end = std::min(bytes, begin + part);
    if (begin < end && !touch_part(static_cast<char*>(mapped) + begin, static_cast<size_t>(end - begin))) whole = false;
  });
  return whole;
}

}  // namespace tessera::engine
