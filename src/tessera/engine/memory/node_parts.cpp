#include "tessera/engine/memory/node_parts.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"

namespace tessera::engine {

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
