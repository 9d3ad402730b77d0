#include "tessera/engine/memory/numa.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "tessera/base/check.h"

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
int64_t bytes_of(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(" " + key + ":");
    if (at == line.npos) continue;
    int64_t kib = -1;
    std::istringstream(line.substr(at + key.size() + 2)) >> kib;
    return kib < 0 ? -1 : kib * 1024;
  }
  return -1;
}

/// The processors that this process may use.
std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

/// Those of a list.
std::vector<int> allowed_cpus(const std::string& list) {
  const std::vector<int> allowed = allowed_cpus();
  std::vector<int> cpus;
  for (const int cpu : numbers_of(list))
    if (std::ranges::find(allowed, cpu) != allowed.end()) cpus.push_back(cpu);
  return cpus;
}

/// The memory of a virtual machine may begin small and grow while it is used: what the system refuses now it may have a
/// moment later. So pages are taken by the GiB, and each of these waits some seconds for the machine.
bool touch_part(char* mapped, int64_t size) {
  constexpr int64_t kPiece = int64_t{1} << 30;
  constexpr auto kPatience = std::chrono::seconds(5);
  constexpr auto kPause = std::chrono::milliseconds(50);
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    const int64_t bytes = std::min(kPiece, size - begin);
#ifdef MADV_POPULATE_WRITE
    const auto until = std::chrono::steady_clock::now() + kPatience;
    bool taken = false, known = true;
    while (!taken && known) {
      taken = madvise(mapped + begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0;
      if (taken) break;
      known = errno != EINVAL;  // a kernel before 5.14 does not know it
      if (known && std::chrono::steady_clock::now() > until) return false;
      if (known) std::this_thread::sleep_for(kPause);
    }
    if (taken) continue;
#endif
    for (int64_t at = begin; at < begin + bytes; at += 4096) static_cast<volatile char*>(mapped)[at] = 0;
  }
  return true;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& sysfs) {
  const std::string folder = sysfs + "/devices/system/node/";
  const std::vector<int> online = numbers_of(line_of(folder + "online"));
  std::vector<NumaNode> nodes;
  if (online.size() < 2) return nodes;
  for (const int number : online) {
    const std::string own = folder + "node" + std::to_string(number), memory = own + "/meminfo";
    NumaNode& node = nodes.emplace_back(NumaNode{.number = number, .cpus = allowed_cpus(line_of(own + "/cpulist"))});
    node.room = node.free = bytes_of(memory, "MemFree");
    if (node.free >= 0)
      for (const char* kept : {"Active(file)", "Inactive(file)"})
        node.room += std::max<int64_t>(0, bytes_of(memory, kept));
    std::istringstream distances(line_of(own + "/distance"));
    for (const int other : online)
      if (int far = 0; distances >> far) node.distance[other] = far;
  }
  return nodes;
}

std::optional<NumaNode> near_node(const std::string& pci, const std::string& sysfs) {
  const std::optional<int> number =
      pci.empty() ? std::nullopt : number_of(line_of(sysfs + "/bus/pci/devices/" + pci + "/numa_node"));
  if (!number) return std::nullopt;
  for (const NumaNode& node : numa_nodes(sysfs))
    if (node.number == *number && !node.cpus.empty()) return node;
  return std::nullopt;
}

void prefer_node(void* mapped, size_t size, int node) {
  constexpr int kPreferred = 1, kBits = 1024;  // MPOL_PREFERRED; libnuma has a name for it, and we do not link that
  if (node < 0 || node >= kBits) return;
  unsigned long mask[kBits / (8 * sizeof(unsigned long))] = {};
  mask[static_cast<size_t>(node) / (8 * sizeof *mask)] |= 1UL << (static_cast<size_t>(node) % (8 * sizeof *mask));
  static_cast<void>(syscall(SYS_mbind, mapped, size, kPreferred, mask, kBits + 1, 0));
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

std::vector<int> touching_cpus(const std::vector<int>& near) { return near.empty() ? allowed_cpus() : near; }

bool touch_pages(void* mapped, size_t size, const std::vector<int>& near) {
  madvise(mapped, size, MADV_HUGEPAGE);
  constexpr int64_t kOfThread = int64_t{64} << 20, kHugePage = int64_t{2} << 20, kMostThreads = 8;
  const auto bytes = static_cast<int64_t>(size);
  const std::vector<int> cpus = touching_cpus(near);
  const int64_t threads = std::min({kMostThreads, static_cast<int64_t>(cpus.size()), div_up(bytes, kOfThread)});
  if (threads < 2 && near.empty()) return touch_part(static_cast<char*>(mapped), bytes);
  const int64_t part = round_up(div_up(bytes, threads), kHugePage);
  std::atomic<bool> whole = true;
  on_cpus(cpus, static_cast<int>(threads), [&](int thread) {
    const int64_t begin = std::min(bytes, thread * part), end = std::min(bytes, begin + part);
    if (begin < end && !touch_part(static_cast<char*>(mapped) + begin, end - begin)) whole = false;
  });
  return whole;
}

}  // namespace tessera::engine
