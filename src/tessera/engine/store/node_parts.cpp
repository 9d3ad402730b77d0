#include "tessera/engine/store/node_parts.h"

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
#include <map>
#include <mutex>
#include <numeric>
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

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

/// Nodes by distance from a rank's GPU, its own first.
std::vector<int> nearest(const NodeShare& rank) {
  std::vector<int> order;
  for (int node = 0; node < kMostNodes; ++node)
    if (rank.distance[static_cast<size_t>(node)] > 0 || node == rank.node) order.push_back(node);
  std::ranges::stable_sort(order, {},
                           [&](int node) { return node == rank.node ? 0 : rank.distance[static_cast<size_t>(node)]; });
  return order;
}

using Place = std::pair<int64_t, int>;  // machine and node

/// What ranks of a machine have read, the least of it: one that reads later may see what another took.
std::map<Place, int64_t> least(const std::vector<NodeShare>& ranks, std::array<int64_t, kMostNodes> NodeShare::*of) {
  std::map<Place, int64_t> bytes;
  for (const NodeShare& rank : ranks)
    if (rank.node >= 0)
      for (const int node : nearest(rank)) {
        const int64_t own = (rank.*of)[static_cast<size_t>(node)];
        const auto [at, first] = bytes.try_emplace({rank.machine, node}, own);
        at->second = std::min(at->second, own);
      }
  return bytes;
}

/// Gives ranks, which need `rest`, alike of what a node has; who needs less leaves it to the others.
void share(int node, int64_t& left, std::vector<size_t> wanting, std::vector<int64_t>& rest,
           std::vector<NodeParts>& parts) {
  std::ranges::stable_sort(wanting, {}, [&](size_t rank) { return rest[rank]; });
  for (size_t i = 0; i < wanting.size(); ++i) {
    const size_t rank = wanting[i];
    const int64_t most = left / static_cast<int64_t>(wanting.size() - i);
    const int64_t got = rest[rank] <= most ? rest[rank] : most / kHugePage * kHugePage;
    if (got <= 0) continue;
    parts[rank].push_back({node, got});
    rest[rank] -= got, left -= got;
  }
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

/// What the process was given, and what its mappings have taken of it.
struct Given {
  std::mutex mutex;
  NodeParts left;
  int first = -1;
  std::map<int, std::vector<int>> cpus;  // by node
};
Given& given() {
  static Given once;
  return once;
}

}  // namespace

int64_t this_machine() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(in, boot);
  return static_cast<int64_t>(hash_text(boot) >> 11);
}

NodeShare node_share(const std::vector<NumaNode>& nodes, const std::optional<NumaNode>& near, int64_t bytes) {
  NodeShare share{.machine = this_machine(), .bytes = bytes};
  if (!near || near->number >= kMostNodes || near->free < 0) return share;
  share.node = near->number;
  for (const NumaNode& node : nodes) {
    if (node.number >= kMostNodes || node.free < 0) continue;
    const auto at = static_cast<size_t>(node.number);
    share.free[at] = node.free, share.room[at] = node.room;
    const auto far = near->distance.find(node.number);
    share.distance[at] = far != near->distance.end() ? far->second : node.number == near->number ? 10 : 20;
  }
  return share;
}

std::vector<NodeParts> place_on_nodes(const std::vector<NodeShare>& ranks) {
  std::vector<NodeParts> parts(ranks.size());
  std::vector<int64_t> rest(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) rest[rank] = ranks[rank].node < 0 ? 0 : ranks[rank].bytes;
  std::map<Place, int64_t> left = least(ranks, &NodeShare::free);
  for (size_t turn = 0; turn < kMostNodes; ++turn) {  // each rank's own node, then its next
    std::map<Place, std::vector<size_t>> wanting;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      if (const std::vector<int> order = nearest(ranks[rank]); rest[rank] > 0 && turn < order.size())
        wanting[{ranks[rank].machine, order[turn]}].push_back(rank);
    for (const auto& [place, who] : wanting) share(place.second, left[place], who, rest, parts);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rest[rank] <= 0) continue;
    if (parts[rank].empty() || parts[rank][0].node != ranks[rank].node)
      parts[rank].insert(parts[rank].begin(), {ranks[rank].node, 0});
    parts[rank][0].bytes += rest[rank];
  }
  return parts;
}

NodeText describe(const std::vector<NodeShare>& ranks, const std::vector<NodeParts>& parts) {
  NodeText text;
  std::map<Place, int64_t> on;                 // bytes of all ranks
  std::map<Place, std::map<int, int64_t>> of;  // by the GPU's node: bytes on each node
  std::map<Place, std::vector<int>> who;
  std::map<int64_t, int64_t> count, needed, room;  // by machine
  for (size_t r = 0; r < ranks.size(); ++r) {
    ++count[ranks[r].machine];
    if (ranks[r].node < 0 || ranks[r].bytes == 0) continue;
    const Place own = {ranks[r].machine, ranks[r].node};
    who[own].push_back(static_cast<int>(r));
    needed[ranks[r].machine] += ranks[r].bytes;
    for (const NodePart& part : parts[r])
      on[{ranks[r].machine, part.node}] += part.bytes, of[own][part.node] += part.bytes;
  }
  for (const auto& [place, bytes] : least(ranks, &NodeShare::room)) room[place.first] += bytes;
  const auto machine = [&](int64_t number) {
    return count.size() == 1
               ? std::string()
               : " of the machine of rank " +
                     std::to_string(std::ranges::find(ranks, number, &NodeShare::machine) - ranks.begin());
  };
  for (const auto& [place, bytes] : on)
    text.near += (text.near.empty() ? "" : ", ") + format_bytes(bytes) + " on NUMA node " +
                 std::to_string(place.second) + machine(place.first);
  const std::map<Place, int64_t> free = least(ranks, &NodeShare::free);
  for (const auto& [own, there] : of) {
    std::string far;
    int64_t taken = 0;
    for (const auto& [node, bytes] : there) {
      taken += bytes;
      if (node != own.second)
        far += (far.empty() ? "" : " and ") + format_bytes(bytes) + " on node " + std::to_string(node);
    }
    if (far.empty()) continue;
    const auto members = static_cast<int64_t>(who[own].size());
    const int64_t budget = free.at(own) / members * count[own.first];  // of a machine, which its ranks share alike
    text.far.push_back("NUMA node " + std::to_string(own.second) + machine(own.first) + " has " +
                       format_bytes(free.at(own)) + " free, and the host memory of " + list_of(who[own]) + ", whose " +
                       (members == 1 ? "GPU hangs" : "GPUs hang") + " on it, is " + format_bytes(taken) + ": it has " +
                       far + ", whose copies cross the link between the sockets; lower plan.host_budget to " +
                       format_bytes(budget) + ", or end what uses that node's memory (numactl -H)");
  }
  for (const auto& [number, bytes] : needed)
    if (bytes > room[number] && text.shortage.empty())
      text.shortage = "the NUMA nodes" + machine(number) + " have " + format_bytes(room[number]) +
                      " that are free or hold cached files, and the host memory of its ranks is " + format_bytes(bytes);
  return text;
}

void set_node_parts(NodeParts parts, std::vector<NumaNode> nodes) {
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  all.first = parts.empty() ? -1 : parts[0].node;
  all.left = std::move(parts);
  all.cpus.clear();
  for (NumaNode& node : nodes) all.cpus[node.number] = std::move(node.cpus);
}

NodeParts take_node_parts(int64_t bytes) {
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  NodeParts taken;
  if (all.first < 0) return taken;
  for (NodePart& part : all.left) {
    const int64_t got = bytes <= part.bytes ? bytes : part.bytes / kHugePage * kHugePage;
    if (got <= 0) continue;
    taken.push_back({part.node, got});
    part.bytes -= got, bytes -= got;
  }
  if (bytes > 0) taken.push_back({all.first, bytes}), all.left[0].bytes -= bytes;
  return taken;
}

void give_node_parts(const NodeParts& parts) {
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  for (const NodePart& part : parts)
    if (const auto own = std::ranges::find(all.left, part.node, &NodePart::node); own != all.left.end())
      own->bytes += part.bytes;
}

bool touch_parts(void* mapped, size_t size, const NodeParts& parts) {
  auto* at = static_cast<char*>(mapped);
  auto left = static_cast<int64_t>(size);
  for (const NodePart& part : parts) {
    const int64_t bytes = std::min(left, part.bytes);
    std::vector<int> cpus;
    {
      const std::lock_guard lock(given().mutex);
      cpus = given().cpus[part.node];
    }
    prefer_node(at, static_cast<size_t>(bytes), part.node);
    if (bytes > 0 && !touch_pages(at, static_cast<size_t>(bytes), cpus)) return false;
    at += bytes, left -= bytes;
  }
  return true;
}

}  // namespace tessera::engine
