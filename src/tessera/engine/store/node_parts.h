#pragma once
// On which NUMA nodes the host memory of ranks lies: each takes the node of its GPU, and what that has no room for from the
// nearest node that has. Decided once, by all ranks of a machine alike, before any of it is taken.
//
//   const std::vector<NodeParts> all = place_on_nodes(ranks);   // the same on every rank
//   set_node_parts(all[rank], numa_nodes());                    // host memory of this process lies there (host_memory.h)
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

// The NUMA node that a GPU hangs on. Memory lies on the node of the thread that touches it first, and copies to a GPU of
// another socket cross the link between the two: host memory of a GPU is touched by threads on its own node.
//
//   const std::optional<NumaNode> node = near_node(properties.pci);
//   touch_pages(mapped, size, node ? node->cpus : std::vector<int>());
// Which node has room for what is in node_parts.h.

struct NumaNode {
  int number = 0;
  std::vector<int> cpus;  ///< of the node, those that this process may use
  int64_t free = -1;      ///< bytes; -1: not known
  int64_t room = -1;      ///< bytes: free, or of files that the system keeps there and can read again; -1: not known
  std::map<int, int> distance = {};  ///< of each node, by its number, as the firmware tells it: 10 is itself
};

/// The nodes of the machine, by number; empty: it has one, or the system does not say.
std::vector<NumaNode> numa_nodes(const std::string& sysfs = "/sys");

/// The node of the device at this address of the bus ("0000:3b:00.0"). Empty: the machine has one node, the system does not
/// say, or the process may use none of its processors. `sysfs`: where the system says it.
std::optional<NumaNode> near_node(const std::string& pci, const std::string& sysfs = "/sys");

/// Runs task(0) to task(threads - 1), each on a thread of its own that stays on `cpus`, and waits for them.
void on_cpus(const std::vector<int>& cpus, int threads, const std::function<void(int)>& task);

/// Takes the pages of a mapping now, in huge ones where the system has them, by up to eight threads on touching_cpus(). False
/// where the machine has too little memory, and gets no more within some seconds.
bool touch_pages(void* mapped, size_t size, const std::vector<int>& near);
/// `near`, the processors near a GPU; where none are known, as on a machine of one node, all that the process may use.
std::vector<int> touching_cpus(const std::vector<int>& near);
/// Pages of the mapping that are taken from here on come from this node while it has some free. A system that refuses that
/// (seccomp of containers) takes them from the node of the thread that touches them, as it does without.
void prefer_node(void* mapped, size_t size, int node);

inline constexpr int kMostNodes = 16;  ///< of a machine; memory on others is used as the system likes

/// What a rank knows of its machine, and needs of it.
struct NodeShare {
  int64_t machine = 0;                        ///< the same number on ranks of one machine (this_machine())
  int node = -1;                              ///< of its GPU; -1: it has none, and its memory lies where it may
  int64_t bytes = 0;                          ///< of the rank's host tier
  std::array<int64_t, kMostNodes> free = {};  ///< by number of the node, before any rank took some
  std::array<int64_t, kMostNodes> room = {};  ///< likewise: NumaNode::room
  std::array<int, kMostNodes> distance = {};  ///< from `node`; 0: there is no such node
};
/// Of this process. `near`: near_node() of its GPU.
NodeShare node_share(const std::vector<NumaNode>& nodes, const std::optional<NumaNode>& near, int64_t bytes);
/// A number that processes of one machine share, containers or not; at most 2^53.
int64_t this_machine();

struct NodePart {
  int node = 0;
  int64_t bytes = 0;
  bool operator==(const NodePart&) const = default;
};
using NodeParts = std::vector<NodePart>;  ///< of a rank, nearest first

/// By rank. A node is shared alike by the ranks whose GPUs hang on it; what it has left goes to others, nearest first. What no
/// node has free, because it keeps files, is on the GPU's own: the system makes room there. None for ranks without a node.
std::vector<NodeParts> place_on_nodes(const std::vector<NodeShare>& ranks);

struct NodeText {
  std::string near;              ///< how much lies where; empty: no rank has a node
  std::vector<std::string> far;  ///< of each node whose ranks have memory elsewhere: how much, and what to do
  std::string shortage;          ///< of the first machine whose nodes together have too little; empty: none has
};
NodeText describe(const std::vector<NodeShare>& ranks, const std::vector<NodeParts>& parts);

/// Host memory of the process lies on these parts, which mappings take in their order.
void set_node_parts(NodeParts parts, std::vector<NumaNode> nodes);
/// The next `bytes`, which give_node_parts() gives back; what is beyond all parts is on the first of them. Empty: there are none.
NodeParts take_node_parts(int64_t bytes);
void give_node_parts(const NodeParts& parts);
/// touch_pages() of each part by threads on its node.
bool touch_parts(void* mapped, size_t size, const NodeParts& parts);

}  // namespace tessera::engine
